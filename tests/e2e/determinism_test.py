"""The same recipe gives the same bits: again, with any number of rollout workers, and with workers that were
started by hand."""
import harness
from harness import require, require_equal

CHANGES = {
    "run.steps": 5,
    "sft": {"steps": 4, "batch_size": 16, "optimizer": {"lr": 1.0e-3, "weight_decay": 0.0}},
    "checkpoint.every": 0,
}


def changes(t, workers, **more):
    changed = {**CHANGES, "rollout.workers": workers, **more}
    changed["sft"] = {**CHANGES["sft"], "path": t.input("data/sft.jsonl")}
    changed["data.eval"] = [{"name": "holdout", "path": t.input("data/holdout.jsonl"), "every": 2}]
    return changed


def require_same(run, reference, what):
    for got, expected in zip(run.stable_lines(), reference.stable_lines()):
        require_equal(got, expected, f"{what}: a line of metrics.jsonl")
    require_equal(len(run.stable_lines()), len(reference.stable_lines()), f"{what}: lines of metrics.jsonl")
    require_equal(run.ledger(), reference.ledger(), f"{what}: ledger digests")
    require(run.weights(5) == reference.weights(5), f"{what}: the final weights differ")
    for step in range(1, 6):
        require_equal(run.samples(step), reference.samples(step), f"{what}: samples of step {step}")


def case_workers_and_repetition(t):
    reference = t.train("two", changes(t, 2))
    rows = reference.metrics()
    require_equal([row["step"] for row in rows], list(range(6)), "steps")
    require(any("time/step" in row for row in rows) and
            not any("time/" in line or "_per_second" in line for line in reference.stable_lines()),
            "clock readings must be in the file, and not in what is compared")
    # Runs that learn nothing, or whose rewards are all equal, would be the same too easily.
    require(sum(row["train/grad_norm"] > 0 for row in rows[1:]) >= 3, "too few steps had a gradient")
    ledger = reference.ledger()
    require_equal(len(ledger), 6, "versions in the ledger")
    require(sum(a != b for a, b in zip(ledger, ledger[1:])) >= 3, "too few steps changed the weights")
    for name, workers in (("again", 2), ("one", 1), ("four", 4)):
        require_same(t.train(name, changes(t, workers)), reference, f"{workers} rollout workers ({name})")
    threads = {"trainer.threads": 3, "rollout.threads": 2}
    require_same(t.train("threads", changes(t, 2, **threads)), reference, "with several threads")
    t.note(f"runs with 2, 2, 1 and 4 rollout workers, and with 1 and 3 trainer threads: {len(rows)} metric lines, "
           f"{sum(map(len, ledger))} tensor digests and the final weights agree; last loss "
           f"{rows[-1]['train/loss']}")


def case_another_seed(t):
    first = t.train("seed42", {"run.steps": 1})
    second = t.train("seed43", {"run.steps": 1, "run.seed": 43})
    require(first.samples(1) != second.samples(1), "another seed drew the same samples")
    require(first.stable_lines() != second.stable_lines(), "another seed gave the same metrics")
    require_equal(first.ledger()[0], second.ledger()[0], "version 0 does not depend on the seed")


def case_workers_started_by_hand(t):
    reference = t.train("local", changes(t, 2))
    recipe = t.recipe("remote", changes(t, 2))
    controller = t.start("controller", recipe, "--listen", "127.0.0.1:0")
    address = controller.address()
    workers = [t.start("worker", "--pool", pool, "--rank", rank, "--controller", address)
               for pool, rank in (("rollout", "1"), ("trainer", "0"), ("rollout", "0"))]
    controller.wait(expect=0)
    for worker in workers:
        worker.wait(expect=0)
    require_same(harness.Run(t.path("remote")), reference, "controller and workers started by hand")
    t.note("`accord controller` with three `accord worker` gives the bits of `accord run`")


if __name__ == "__main__":
    harness.main(globals())
