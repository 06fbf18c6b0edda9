#!/usr/bin/env python3
"""A reward scorer to start from: reads one JSON request per line, writes one JSON reply per line, in order.

In a recipe (the run then needs --allow-exec):
  reward: {type: external, command: [python3, scripts/reward_example.py], batch_size: 32, deadline_s: 30}

By hand:
  echo '{"id": 1, "response": "Answer: 34", "label": "34"}' | scripts/reward_example.py

Standard output is for replies only: anything else there fails the batch. Messages go to standard error, which a run
keeps in logs/reward.log. Standard library only.
"""
import json
import re
import sys


def score(request):
    """1 if what stands after the last "Answer:" is the label, else -1: on plain numbers as math_dapo scores."""
    answers = re.findall(r"(?i)answer\s*:\s*([^\n]+)", request["response"][-300:])
    pred = answers[-1].strip(" $.") if answers else None
    return (1.0 if pred == request["label"] else -1.0), pred


def main():
    replies = sys.stdout
    sys.stdout = sys.stderr  # a stray print() must not end up among the replies
    for line in sys.stdin:  # ends when the run does
        request = json.loads(line)
        value, pred = score(request)
        replies.write(json.dumps({"id": request["id"], "score": value, "pred": pred}) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
