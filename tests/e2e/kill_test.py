"""A process that is killed in the middle of a step takes the run down at once, with its name in the message,
without orphans, and without harm to what was saved."""
import json
import os
import re
import signal
import time

import harness
from harness import DRAINED, WORKER_LOST, require, require_equal, require_parts

QUICK = 15 * harness.TIME_FACTOR  # seconds that a loss may take to show

# Steps long enough to be hit in the middle: the untrained model's responses run to their limit.
LONG = {"run.steps": 1000, "rollout.prompts_per_step": 32, "rollout.samples_per_prompt": 8,
        "rollout.max_response_tokens": 100, "trainer.tokens_per_microbatch": 1024, "checkpoint.every": 1,
        "checkpoint.keep": 2}


def changes(t):
    return {**LONG, "model.checkpoint": t.input("untrained")}


def require_no_process(address):
    """Seconds until no process of the run was left. Every worker has the controller's address as an argument."""
    begin = time.monotonic()
    harness.wait_for(lambda: not harness.processes_with(address), "the end of the run's processes", timeout=QUICK)
    return time.monotonic() - begin


def in_phase(t, address, phase):
    """The status in the middle of a later step's phase; step 1 is saved then."""
    return t.wait_status(address, lambda s: s["phase"] == phase and s["step"] >= 1, f"phase {phase}")


def worker_pids(status):
    pids = {worker["name"]: worker["pid"] for worker in status["workers"]}
    require_equal(sorted(pids), ["rollout/0", "rollout/1", "trainer/0"], "workers")
    return pids


def require_resumable(t, name):
    """The step that was cut off never happened; the run goes on from what was saved."""
    run = harness.Run(t.path(name))
    steps = [row["step"] for row in run.metrics()]
    require_equal(steps, list(range(len(steps))), "steps before the resume")
    last = steps[-1] + 1
    t.accord("run", t.recipe(name, {**changes(t), "rollout.max_response_tokens": 8}), "--resume", "--steps", str(last))
    steps = [row["step"] for row in run.metrics()]
    require_equal(steps, list(range(last + 1)), "steps after the resume")


def kill_worker(t, victim, phase):
    name = "run-" + victim.replace("/", "-")
    controller, _ = t.start_run(name, changes(t))
    address = controller.address()
    status = in_phase(t, address, phase)
    pids = worker_pids(status)
    require(set(pids.values()) <= set(harness.processes_with(address)), "the search for processes misses a worker")
    os.kill(pids[victim], signal.SIGKILL)
    seconds = controller.wait(expect=WORKER_LOST, timeout=QUICK)
    log = controller.log()
    require_parts(log, [f"accord: error: worker {victim} was lost", "killed by signal 9", "--resume"], "the error")
    require_equal(log.count("accord: error: "), 1, "errors printed")
    require_no_process(address)
    require_resumable(t, name)
    hit = re.search(r"lost in phase '(\w+)' after step (\d+)", log)
    t.note(f"SIGKILL to {victim} in phase '{hit.group(1)}' of step {int(hit.group(2)) + 1}: exit 71 after "
           f"{seconds:.1f} s, no process left, resumed")


def case_rollout_worker(t):
    kill_worker(t, "rollout/1", "rollout")


def case_trainer(t):
    kill_worker(t, "trainer/0", "train")


def case_controller(t):
    controller, _ = t.start_run("run", changes(t))
    address = controller.address()
    pids = worker_pids(in_phase(t, address, "rollout"))
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait(expect=-signal.SIGKILL)
    seconds = require_no_process(address)
    require_resumable(t, "run")
    t.note(f"SIGKILL to the controller: its {len(pids)} workers ended within {seconds:.1f} s, resumed")


def case_controller_of_workers_started_by_hand(t):
    controller = t.start("controller", t.recipe("run", changes(t)), "--listen", "127.0.0.1:0")
    address = controller.address()
    workers = [t.start("worker", "--pool", pool, "--rank", rank, "--controller", address)
               for pool, rank in (("rollout", "0"), ("rollout", "1"), ("trainer", "0"))]
    in_phase(t, address, "train")
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait(expect=-signal.SIGKILL)
    seconds = max(worker.wait(expect=WORKER_LOST, timeout=QUICK) for worker in workers)
    for worker in workers:
        require_parts(worker.log(), ["the controller is gone"], "a worker's log")
    t.note(f"workers that nobody started for the controller end with 71 within {seconds:.1f} s")


def case_terminated(t):
    """SIGTERM ends the run after its step (75: start me again), and those who watch it; a second one at once."""
    short = {**changes(t), "rollout.prompts_per_step": 8, "checkpoint.every": 0}
    controller, run = t.start_run("once", short)
    address = controller.address()
    in_phase(t, address, "rollout")
    watch = t.start("watch", address, "--json")
    os.kill(controller.pid, signal.SIGTERM)
    controller.wait(expect=DRAINED)
    watch.wait(expect=0, timeout=QUICK)
    steps = [json.loads(line)["step"] for line in watch.log().splitlines()]
    require_equal(steps, [row["step"] for row in run.metrics()], "steps that the watcher saw")
    require(os.path.isdir(run.checkpoint(steps[-1])), "no checkpoint of the last step")
    require_parts(controller.log(), ["ending after the current step", "drained after step"], "the log")

    controller, run = t.start_run("twice", changes(t))
    address = controller.address()
    in_phase(t, address, "rollout")
    os.kill(controller.pid, signal.SIGTERM)
    harness.wait_for(lambda: "ending after the current step" in controller.log(), "the first signal's effect")
    os.kill(controller.pid, signal.SIGTERM)
    seconds = controller.wait(expect=128 + signal.SIGTERM, timeout=QUICK)
    require_no_process(address)
    require_resumable(t, "twice")
    t.note(f"SIGTERM once: exit 75 with a checkpoint after step {steps[-1]}; twice: exit 143 after {seconds:.1f} s")


if __name__ == "__main__":
    harness.main(globals())
