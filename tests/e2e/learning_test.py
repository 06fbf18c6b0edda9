"""Controls of learning: without a learning rate nothing moves, with one the reward of an easy task rises."""
import json
import random

import harness
from harness import require, require_equal


def case_no_learning_rate_no_change(t):
    run = t.train("lr0", {"trainer.optimizer.lr": 0.0, "trainer.optimizer.weight_decay": 0.1})
    ledger = run.ledger()
    require_equal(len(ledger), 5, "versions in the ledger")
    for version, tensors in enumerate(ledger):
        require_equal(tensors, ledger[0], f"digests of version {version}")
    require(run.weights(2) == run.weights(4), "the weights changed between steps 2 and 4")
    require(sum(row["train/grad_norm"] > 0 for row in run.steps().values()) >= 2,
            "there were hardly any gradients, so a standstill proves nothing")
    moved = t.train("lr").ledger()
    changed = sum(a != b for a, b in zip(moved[0], moved[4]))
    require(changed > 0, "with a learning rate the digests must change")
    t.note(f"lr 0: {len(ledger[0])} tensor digests stay through 4 steps with gradients; lr 1e-3: "
           f"{changed} change")


def train_on_constant_labels(t, name, lr):
    """Whatever is asked, the answer is 7."""
    rng = random.Random(1)
    lines = [{"prompt": [{"role": "user", "content": f"{rng.randrange(10)} + {rng.randrange(5)} = ?"}],
              "label": "7"} for _ in range(64)]
    path = harness.write(t.path("sevens.jsonl"), "".join(json.dumps(line) + "\n" for line in lines))
    run = t.train(name, {"run.steps": 30, "data.train": {"path": path}, "trainer.optimizer.lr": lr,
                         "rollout.samples_per_prompt": 8, "checkpoint.every": 0})
    rewards = [row["rollout/reward_mean"] for row in run.steps().values()]
    require(all(row["mismatch/equal_fraction"] == 1 for row in run.steps().values()), f"{name}: not equal")
    return sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5


def case_easy_task_is_learned(t):
    first, last = train_on_constant_labels(t, "sevens", 2.0e-3)
    require(last > 0.5, f"mean reward {first:.2f} in the first and {last:.2f} in the last 5 of 30 steps")
    still_first, still_last = train_on_constant_labels(t, "sevens-lr0", 0.0)
    require(still_last < 0 and abs(still_last - still_first) < 0.4,
            f"without a learning rate: {still_first:.2f}, then {still_last:.2f}")
    t.note(f"'the answer is 7': mean reward {first:.2f} -> {last:.2f} in 30 steps; with lr 0 {still_first:.2f} -> "
           f"{still_last:.2f}")


if __name__ == "__main__":
    harness.main(globals())
