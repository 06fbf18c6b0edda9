#!/usr/bin/env python3
"""Writes the quickstart's data: additions as prompts in the DAPO layout, a held-out set, and demonstrations
for the supervised warm start, most of which are wrong. Deterministic. Standard library only."""
import argparse
import json
import os
import random


def question(a, b):
    return f"{a} + {b} = ?"


def prompt(a, b):
    return [{"role": "user", "content": question(a, b)}]


def dapo_record(index, a, b, label):
    return {
        "data_source": "arithmetic",
        "prompt": prompt(a, b),
        "ability": "math",
        "reward_model": {"ground_truth": str(label), "style": "rule"},
        "extra_info": {"index": index},
    }


def write(path, records):
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    print(f"{path}: {len(records)} records")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", help="directory to write to")
    parser.add_argument("--first", type=int, default=100, help="first operands: 0 to this, exclusive")
    parser.add_argument("--second", type=int, default=20, help="second operands: 0 to this, exclusive")
    parser.add_argument("--holdout", type=int, default=200, help="held-out prompts")
    parser.add_argument("--demonstrations", type=int, default=10, help="supervised examples per training prompt")
    parser.add_argument("--wrong", type=float, default=0.7,
                        help="share of the supervised examples whose answer is one too many")
    parser.add_argument("--shuffle-labels", action="store_true",
                        help="give the training prompts each other's labels (a control: nothing can be learned)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    rng = random.Random(args.seed)
    pairs = [(a, b) for a in range(args.first) for b in range(args.second)]
    rng.shuffle(pairs)
    holdout, train = pairs[: args.holdout], pairs[args.holdout:]
    labels = [a + b for a, b in train]
    if args.shuffle_labels:
        rng.shuffle(labels)

    os.makedirs(args.out, exist_ok=True)
    write(os.path.join(args.out, "train.jsonl"),
          [dapo_record(i, a, b, label) for i, ((a, b), label) in enumerate(zip(train, labels))])
    write(os.path.join(args.out, "holdout.jsonl"),
          [dapo_record(i, a, b, a + b) for i, (a, b) in enumerate(holdout)])
    sft = []
    for a, b in train:
        for _ in range(args.demonstrations):
            answer = a + b + (1 if rng.random() < args.wrong else 0)
            sft.append({"prompt": prompt(a, b), "response": f"Answer: {answer}"})
    rng.shuffle(sft)
    write(os.path.join(args.out, "sft.jsonl"), sft)
    counts = {}
    for a, b in holdout:
        counts[a + b] = counts.get(a + b, 0) + 1
    print(f"the best constant answer scores {max(counts.values()) / len(holdout):.3f} on the held-out set")


if __name__ == "__main__":
    main()
