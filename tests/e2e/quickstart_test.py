"""The shipped quickstart recipes learn what they are said to learn, and their controls do not."""
import json
import os
import subprocess
import sys

import harness
from harness import require

PASS1 = "eval/holdout/pass1"
PATIENCE = 600 * harness.TIME_FACTOR  # seconds for one whole run on a busy machine


def make_data(t, name, *arguments):
    directory = t.path(name)
    subprocess.run([sys.executable, os.path.join(harness.SOURCE, "scripts/make_arithmetic.py"), directory, *arguments],
                   check=True, timeout=harness.PATIENCE, stdout=subprocess.DEVNULL)
    return directory


def best_constant_share(path):
    labels = [json.loads(line)["reward_model"]["ground_truth"] for line in open(path, encoding="utf-8")]
    require(len(labels) == 200, f"{len(labels)} held-out prompts")
    return max(labels.count(label) for label in set(labels)) / len(labels)


def quickstart(t, name, recipe, *arguments):
    """Held-out accuracy before the first and after the last step."""
    data = make_data(t, "data") if not os.path.exists(t.path("data")) else t.path("data")
    require(best_constant_share(data + "/holdout.jsonl") < 0.15, "a constant answer scores too well")
    evaluation = {"name": "holdout", "path": data + "/holdout.jsonl", "samples": 4, "every": 25}
    t.accord("run", os.path.join(harness.SOURCE, "configs", recipe), "--set", f"run.dir={t.path(name)}",
             "--set", f"model.checkpoint={t.input('untrained')}", "--set", f"data.train.path={data}/train.jsonl",
             "--set", f"sft.path={data}/sft.jsonl", "--set", f"data.eval={json.dumps([evaluation])}",
             "--set", f"rollout.device={harness.DEVICE or 'auto'}", *arguments,
             timeout=PATIENCE)
    rows = harness.Run(t.path(name)).metrics()
    require(all(row["mismatch/equal_fraction"] == 1 for row in rows if row["step"] > 0),
            f"{name}: rollout and trainer log-probs differ")
    first, last = rows[0][PASS1], rows[-1][PASS1]
    t.note(f"{name}: held-out accuracy {first:.3f} -> {last:.3f} in {rows[-1]['step']} steps, equal_fraction 1")
    return first, last


def case_mxfp8_learns(t):
    first, last = quickstart(t, "mxfp8", "quickstart-mxfp8.yaml")
    require(last - first >= 0.5, f"accuracy rose from {first} to {last} only")


def case_nvfp4_learns(t):
    first, last = quickstart(t, "nvfp4", "quickstart-nvfp4.yaml")
    require(last - first >= 0.5, f"accuracy rose from {first} to {last} only")


def case_controls_do_not_learn(t):
    first, last = quickstart(t, "lr0", "quickstart-mxfp8.yaml", "--set", "trainer.optimizer.lr=0")
    require(abs(last - first) < 0.05, f"without a learning rate: {first} -> {last}")
    shuffled = make_data(t, "shuffled", "--shuffle-labels")
    first, last = quickstart(t, "shuffled", "quickstart-mxfp8.yaml", "--set",
                             f"data.train.path={shuffled}/train.jsonl")
    require(last - first < 0.05, f"with shuffled labels: {first} -> {last}")


if __name__ == "__main__":
    harness.main(globals())
