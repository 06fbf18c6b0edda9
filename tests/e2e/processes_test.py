"""Controller and workers as processes of their own: any order of starting, and who is refused."""
import os
import signal
import socket
import time

import harness
from harness import UNAVAILABLE, USAGE, WORKER_LOST, require, require_equal, require_parts

QUICK = 20 * harness.TIME_FACTOR
MEMBERS = (("trainer", 0), ("rollout", 0), ("rollout", 1))


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def start_worker(t, address, pool, rank, *more):
    return t.start("worker", "--pool", pool, "--rank", str(rank), "--controller", address, *more)


def start_controller(t, name, address, changes=None, arguments=()):
    recipe = t.recipe(name, {"run.steps": 2, "checkpoint.every": 0, **(changes or {})})
    return t.start("controller", recipe, "--listen", address, *arguments)


def listening(controller):
    controller.address()
    return controller


def registered(t, address, *names):
    return t.wait_status(address, lambda s: {w["name"] for w in s["workers"] if w["state"] != "lost"} >= set(names),
                         f"the registration of {names}")


def case_any_order(t):
    """Workers before their controller, after it, and one long after the others."""
    reference = t.train("reference", {"run.steps": 2, "checkpoint.every": 0})
    address = free_address()
    workers = [start_worker(t, address, *member) for member in MEMBERS]
    time.sleep(1.5)
    require(all(worker.running() for worker in workers), f"a worker did not wait:\n{workers[0].log()}")
    controller = start_controller(t, "before", address)
    controller.wait(expect=0)
    for worker in workers:
        worker.wait(expect=0, timeout=QUICK)
    require_equal(harness.Run(t.path("before")).ledger(), reference.ledger(), "ledger, workers first")

    address = free_address()
    controller = start_controller(t, "after", address)
    controller.address()
    workers = [start_worker(t, address, *member) for member in MEMBERS[:2]]
    status = registered(t, address, "trainer/0", "rollout/0")
    require_equal(status["phase"], "waiting for workers", "phase")
    time.sleep(1)
    require(controller.running(), controller.log())
    workers.append(start_worker(t, address, *MEMBERS[2]))
    controller.wait(expect=0)
    for worker in workers:
        worker.wait(expect=0, timeout=QUICK)
    require_equal(harness.Run(t.path("after")).ledger(), reference.ledger(), "ledger, controller first")

    error = t.accord("controller", t.recipe("missing", {"deadlines": {"register": 1}}), expect=WORKER_LOST).error()
    require_parts(error, ["trainer/0, rollout/0, rollout/1", "deadlines.register"], "the error")
    t.note("workers first, controller first, one worker late: the same ledger")


def case_refused_workers(t):
    """Duplicates, unknown ranks and strangers are turned away; the run does not notice."""
    address = free_address()
    controller = listening(start_controller(t, "run", address, {"run.steps": 10000}))
    workers = [start_worker(t, address, *member) for member in MEMBERS]
    t.wait_status(address, lambda s: s["step"] >= 1, "step 1")
    for pool, rank, parts in (("rollout", 0, [f"rollout/0 is already registered by pid {workers[1].pid}"]),
                              ("trainer", 0, [f"trainer/0 is already registered by pid {workers[0].pid}"]),
                              ("rollout", 2, ["no rollout/2", "trainer/0, rollout/0, rollout/1"]),
                              ("trainer", 7, ["no trainer/7"])):
        error = t.accord("worker", "--pool", pool, "--rank", str(rank), "--controller", address, expect=USAGE).error()
        require_parts(error, [*parts, address], "the error")
    before = t.status(address)
    require_equal(sorted((w["name"], w["pid"]) for w in before["workers"]),
                  sorted((f"{pool}/{rank}", w.pid) for (pool, rank), w in zip(MEMBERS, workers)), "workers")
    t.wait_status(address, lambda s: s["step"] > before["step"], "a step after the refusals")
    t.accord("stop", address)
    controller.wait(expect=0)
    for worker in workers:
        worker.wait(expect=0, timeout=QUICK)
    require("lost" not in controller.log(), controller.log())
    t.note(error.strip())


def case_terminated_workers(t):
    """SIGTERM before the controller is there, while others are missing, and in the middle of a run."""
    address = free_address()
    early = start_worker(t, address, *MEMBERS[1])
    time.sleep(0.5)
    os.kill(early.pid, signal.SIGTERM)
    early.wait(expect=-signal.SIGTERM, timeout=QUICK)

    controller = start_controller(t, "run", address, {"run.steps": 10000, "checkpoint.every": 1, "checkpoint.keep": 1})
    controller.address()
    leaver = start_worker(t, address, *MEMBERS[1])
    registered(t, address, "rollout/0")
    os.kill(leaver.pid, signal.SIGTERM)
    leaver.wait(expect=-signal.SIGTERM, timeout=QUICK)
    harness.wait_for(lambda: "rollout/0 left before the run began" in controller.log(), "word of the worker that left")
    workers = [start_worker(t, address, *member) for member in MEMBERS]
    t.wait_status(address, lambda s: s["step"] >= 1, "a step with the worker that took its place")

    os.kill(workers[2].pid, signal.SIGTERM)
    controller.wait(expect=WORKER_LOST, timeout=QUICK)
    require_parts(controller.log(), ["worker rollout/1 was lost", "--resume"], "the controller's log")
    for worker in workers[:2]:
        worker.popen.wait(QUICK)
    t.note("a worker that left early was replaced; one lost in the run ended it with exit 71")


def case_worker_of_an_ended_run(t):
    """A worker that slept through its controller's end does not join, or disturb, the next run there."""
    address = free_address()
    changes = {"run.steps": 10000, "checkpoint.every": 1, "checkpoint.keep": 1}
    controller = listening(start_controller(t, "run", address, changes))
    workers = [start_worker(t, address, *member) for member in MEMBERS]
    t.wait_status(address, lambda s: s["step"] >= 1, "step 1")
    sleeper = workers[2]
    os.kill(sleeper.pid, signal.SIGSTOP)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait(expect=-signal.SIGKILL)
    for worker in workers[:2]:
        worker.wait(expect=WORKER_LOST, timeout=QUICK)

    controller = listening(start_controller(t, "run", address, changes, ["--resume"]))
    fresh = [start_worker(t, address, *member) for member in MEMBERS]
    step = t.wait_status(address, lambda s: s["phase"] == "train", "the resumed run")["step"]
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.wait(expect=WORKER_LOST, timeout=QUICK)
    require_parts(sleeper.log(), ["the controller is gone"], "the old worker's log")
    t.wait_status(address, lambda s: s["step"] > step, "a step after the old worker woke")
    t.accord("stop", address)
    controller.wait(expect=0)
    for worker in fresh:
        worker.wait(expect=0, timeout=QUICK)
    t.note("a worker that was stopped while its controller was replaced ended with exit 71; the new run went on")


def case_nobody_there(t):
    worker = start_worker(t, free_address(), "rollout", 0, "--register-timeout", "1")
    seconds = worker.wait(expect=UNAVAILABLE, timeout=QUICK)
    require(seconds < 15, f"took {seconds} s")


if __name__ == "__main__":
    harness.main(globals())
