"""One run directory, one run, one controller at a time."""
import os

import harness
from harness import RUN_LOCKED, UNAVAILABLE, USAGE, require, require_equal, require_parts


def case_locked(t):
    changes = {"run.steps": 10000, "checkpoint.every": 0}
    controller, _ = t.start_run("run", changes)
    address = controller.address()
    t.wait_status(address, lambda s: s["step"] >= 1, "step 1")
    for arguments in ((), ("--resume",)):
        error = t.accord("run", t.path("run.yaml"), *arguments, expect=RUN_LOCKED).error()
        require_parts(error, [f"pid {controller.pid} ", address, t.path("run")], "the error")
    require_equal(t.status(address)["phase"] in ("rollout", "reward", "train", "sync"), True, "the holder still runs")
    t.accord("stop", address)
    controller.wait(expect=0)
    t.note(f"refused with exit 73: {error.splitlines()[0]}")


def case_finished_run_is_not_touched(t):
    run = t.train("run")
    before = harness.hashes(run.path)
    require(len(before) > 20, f"a finished run has more files than {len(before)}")
    error = t.accord("run", t.path("run.yaml"), expect=USAGE).error()
    require_parts(error, [run.path, "already holds a run", "--resume"], "the error")
    require_equal(harness.hashes(run.path), before, "files after the refusal")
    # It has all its steps, so there is nothing to resume either.
    error = t.accord("run", t.path("run.yaml"), "--resume", expect=USAGE).error()
    require_parts(error, ["step 4", "--steps"], "the error")
    after = harness.hashes(run.path)
    after.pop(run.file("logs/controller.log"))
    before.pop(run.file("logs/controller.log"))
    require_equal(after, before, "files after the refused resume")
    t.note(f"{len(before)} files unchanged; {error.splitlines()[0]}")


def case_another_recipe_is_not_resumed(t):
    run = t.train("run", {"run.steps": 2})
    before = harness.hashes(run.path)
    bf16 = {"configs": {}, "matchers": []}
    for changes, word in (({"precision": bf16}, "precision plan"), ({"run.seed": 43}, "seed"),
                          ({"rollout.prompts_per_step": 4}, "prompts_per_step")):
        error = t.accord("run", t.recipe("run", changes), "--resume", expect=harness.BAD_RECIPE).error()
        require_parts(error, [word, "step_2"], "the error")
    after = harness.hashes(run.path)
    after.pop(run.file("logs/controller.log"))
    before.pop(run.file("logs/controller.log"))
    require_equal(after, before, "files after the refusals")
    t.note(f"three changed recipes refused; {error.splitlines()[0]}")


def case_port_in_use(t):
    controller, _ = t.start_run("first", {"run.steps": 10000, "checkpoint.every": 0})
    address = controller.address()
    error = t.accord("run", t.recipe("second", {"monitor": {"listen": address}}), expect=UNAVAILABLE).error()
    require_parts(error, [address, "in use"], "the error")
    require(not os.path.exists(t.path("second")), "the second run wrote into its directory")
    t.accord("stop", address)
    controller.wait(expect=0)


if __name__ == "__main__":
    harness.main(globals())
