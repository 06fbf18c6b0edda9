#!/usr/bin/env python3
"""A reward scorer to start from: reads one JSON request per line, writes one JSON reply per line, in order.

In a recipe (the run then needs --allow-exec):
  reward: {type: external, command: [python3, scripts/reward_example.py], batch_size: 32, deadline_s: 30}

By hand:
  echo '{"id": 1, "response": "It is 34.", "label": "34"}' | scripts/reward_example.py

Standard output is for replies only: anything else there fails the batch. Messages go to standard error, which a run
keeps in logs/reward.log. Standard library only.
"""
import json
import re
import sys


def score(request):
    """1 if the last number of the response is the label; a tenth for any number at all."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", request["response"])
    if not numbers:
        return 0.0, None
    return (1.0 if numbers[-1] == request["label"] else 0.1), numbers[-1]


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
