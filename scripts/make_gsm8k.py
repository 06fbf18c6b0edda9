#!/usr/bin/env python3
"""Rewrites GSM8K's records {question, answer} to prompts with labels in the DAPO layout, or with --sft to prompts
with the reference solutions as responses, for a supervised warm start. The label is the number after "####" in
the reference answer. Standard library only. GSM8K's train.jsonl and test.jsonl lie in
https://github.com/openai/grade-school-math, under grade_school_math/data."""
import argparse
import json
import os
import re
import sys

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


CALCULATOR = re.compile(r"<<[^>]*>>")  # annotations such as <<48/2=24>>


def convert(line, index, where, sft):
    record = json.loads(line)
    answer = record["answer"]
    if "####" not in answer:
        sys.exit(f"{where}: the answer has no '####'")
    prompt = [{"role": "user", "content": f"{record['question'].strip()} {INSTRUCTION}"}]
    if sft:
        return {"prompt": prompt, "response": CALCULATOR.sub("", answer).strip()}
    label = answer.rsplit("####", 1)[1].strip().replace(",", "")
    return {
        "data_source": "openai/gsm8k",
        "prompt": prompt,
        "ability": "math",
        "reward_model": {"ground_truth": label, "style": "rule"},
        "extra_info": {"index": index},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="GSM8K's train.jsonl or test.jsonl")
    parser.add_argument("out", help="JSONL file to write")
    parser.add_argument("--limit", type=int, default=0, help="only so many records (0: all)")
    parser.add_argument("--sft", action="store_true", help="prompts and responses instead of prompts and labels")
    args = parser.parse_args()

    records = []
    if not os.path.isfile(args.source):
        sys.exit(f"make_gsm8k: error: {args.source} is not a file; see --help for where GSM8K is")
    with open(args.source, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if args.limit and len(records) == args.limit:
                break
            records.append(convert(line, len(records), f"{args.source}:{number}", args.sft))
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    with open(args.out, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(f"{args.out}: {len(records)} records")


if __name__ == "__main__":
    main()
