#!/usr/bin/env python3
"""Runs recipes over several seeds and prints a table of the final held-out accuracy: mean, spread, and each run.
The spread is the standard deviation over seeds (n - 1). Finished runs are not repeated.

  scripts/compare_seeds.py build/release/bin/accord runs/seeds --seeds 1,2,3 configs/quickstart-bf16.yaml \\
      configs/quickstart-mxfp8.yaml configs/quickstart-mxfp8.yaml:precision.backward=quantized

A recipe may be followed by overrides, each after a colon. Standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys


def evaluations(path, name):
    with open(path) as lines:
        rows = [json.loads(line) for line in lines]
    key = f"eval/{name}/pass1"
    return [row[key] for row in rows if key in row], min(row.get("mismatch/equal_fraction", 1) for row in rows)


def run(accord, recipe, overrides, seed, directory):
    if os.path.exists(os.path.join(directory, "done")):
        return
    command = [accord, "run", recipe, "--set", f"run.dir={directory}", "--set", f"run.seed={seed}"]
    for override in overrides:
        command += ["--set", override]
    finished = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if finished.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {finished.returncode}\n{finished.stderr[-2000:]}")
    open(os.path.join(directory, "done"), "w").close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accord", help="the program")
    parser.add_argument("runs", help="directory for the run directories")
    parser.add_argument("recipes", nargs="+", metavar="RECIPE[:KEY=VALUE...]")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated (default %(default)s)")
    parser.add_argument("--eval", default="holdout", help="name of the evaluation set (default %(default)s)")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    print(f"| recipe | before | after, mean | spread | seeds {', '.join(map(str, seeds))} | equal bits |")
    print("|---|---|---|---|---|---|")
    for text in arguments.recipes:
        recipe, *overrides = text.split(":")
        name = "-".join([os.path.basename(recipe).removesuffix(".yaml"), *(o.split("=")[-1] for o in overrides)])
        first, last, equal = [], [], []
        for seed in seeds:
            directory = os.path.join(arguments.runs, f"{name}-{seed}")
            run(arguments.accord, recipe, overrides, seed, directory)
            values, lowest = evaluations(os.path.join(directory, "metrics.jsonl"), arguments.eval)
            first.append(values[0])
            last.append(values[-1])
            equal.append(lowest)
        spread = statistics.stdev(last) if len(last) > 1 else 0.0
        print(f"| {name} | {statistics.mean(first):.3f} | {statistics.mean(last):.3f} | {spread:.3f} | "
              f"{' '.join(f'{value:.3f}' for value in last)} | {min(equal)} |", flush=True)


if __name__ == "__main__":
    main()
