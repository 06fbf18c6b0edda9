"""Rewards of another program: the same run as with a built-in reward, the policies for failures, and what is refused."""
import contextlib
import json
import os
import subprocess
import sys

import harness
from harness import BAD_DATA, UNAVAILABLE, USAGE, require, require_equal, require_parts

EXAMPLE = os.path.join(harness.SOURCE, "scripts/reward_example.py")

# Dies in step 2.
FLAKY = """import json, os, sys
for line in sys.stdin:
    r = json.loads(line)
    assert r["messages"][-1]["role"] == "user" and r["messages"][-1]["content"] and r["set"] == "train", r
    if r["step"] == 2 and r["index"] == 1:
        print("no more today", file=sys.stderr, flush=True)
        os._exit(4)
    print(json.dumps({"id": r["id"], "score": len(r["response"]) / 8, "extra": {"of": r["count"]}}), flush=True)
"""
# Has no score for some of the prompts, and from step 2 on for none.
PARTIAL = """import json, os, sys
for line in sys.stdin:
    r = json.loads(line)
    if r["step"] > 1 or r["prompt_id"] % 2 == 0:
        os._exit(4)
    print(json.dumps({"id": r["id"], "score": len(r["response"]) % 7 / 8}), flush=True)
"""
HANGING = "import sys, time\nprint('thinking', file=sys.stderr, flush=True)\ntime.sleep(1000)\n"
# Never reads, and writes without end.
GARBAGE = "import sys\nwhile True:\n    print('Loading model...')\n    print('x' * 1000, file=sys.stderr)\n"


def reward(command, **more):
    return {"type": "external", "command": command, "retries": 1, **more}


def script(t, name, text):
    return [sys.executable, "-u", harness.write(t.path(name), text)]


def require_no_orphans(text):
    harness.wait_for(lambda: not harness.processes_with(text), f"the processes with {text} to end")


@contextlib.contextmanager
def server(t, *arguments):
    """The address of a RewardService."""
    program = os.path.join(os.path.dirname(t.program), "accord_reward_server")
    with subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def case_equals_the_built_in_reward(t):
    """Whoever computes it, and in whatever batches: the same rewards give the same run."""
    changes = {"run.steps": 3, "data.eval": [{"name": "holdout", "path": t.input("data/holdout.jsonl"), "every": 1,
                                              "samples": 2, "temperature": 0.0}]}
    built_in = t.train("built-in", changes)
    require(len({row["rollout/reward_mean"] for row in built_in.steps().values()}) > 1, "all rewards are equal")
    require(sum(a != b for a, b in zip(built_in.ledger(), built_in.ledger()[1:])) >= 2, "nothing was learned")

    def compare(name, external):
        run = t.train(name, {**changes, "reward": external}, ["--allow-exec"])
        require_equal(run.ledger(), built_in.ledger(), f"weights of {name}")
        require_equal(run.stable_lines(), built_in.stable_lines(), f"metrics of {name}")
        require_equal(run.samples(3), built_in.samples(3), f"samples of {name}")

    command = [sys.executable, EXAMPLE]
    compare("fives", reward(command, batch_size=5))
    compare("whole", reward(command, batch_size=100))
    require_no_orphans(EXAMPLE)
    with server(t, "math_dapo") as address:
        compare("service", {"type": "external", "address": address, "batch_size": 3})
    with server(t, "math_dapo", "once") as address:
        compare("refusing", {"type": "external", "address": address, "batch_size": 16, "retries": 1})
    t.note("processes in batches of 5 and 32, a service in batches of 3, one that refuses each batch once: "
           f"reward_mean {[row['rollout/reward_mean'] for row in built_in.steps().values()]}")


def case_failures_score(t):
    command = script(t, "flaky.py", FLAKY)
    run = t.train("flaky", {"run.steps": 2, "reward": reward(
        command, batch_size=16, on_failure="score", failure_score=-2.5)}, ["--allow-exec"])
    require_equal(run.steps()[1]["rollout/reward_failures"], 0, "failures of step 1")
    require_equal(run.steps()[2]["rollout/reward_failures"], 1, "failures of step 2")
    require_equal(run.steps()[2]["rollout/reward_mean"], -2.5, "the mean of failures")
    require(run.samples(2)[0]["reward_failed"] and "reward_failed" not in run.samples(1)[0], "samples/ tell")
    require_equal(run.samples(1)[0]["extra"], {"of": 16}, "extra in samples/")
    require_parts(harness.read(run.file("logs/reward.log")), ["no more today"], "logs/reward.log")
    require_parts(harness.read(run.file("logs/controller.log")), ["no score came", "reward.failure_score"], "the log")
    require_no_orphans(t.path("flaky.py"))


def case_failures_drop_groups(t):
    command = script(t, "partial.py", PARTIAL)
    changes = {"run.steps": 2, "debug.dump_batches": True,
               "reward": reward(command, batch_size=4, retries=0, on_failure="drop")}
    run = t.train("partial", changes, ["--allow-exec"])
    first, second = run.steps()[1], run.steps()[2]
    share = first["rollout/reward_failures"]
    require(0 < share < 1 and (share * 8).is_integer(), f"failures of step 1: {share}")
    require_equal(first["train/samples"], 32 * (1 - share), "samples that step 1 trains on")
    require("train/loss" in first and 0 <= first["rollout/reward_mean"] < 1, f"step 1: {first}")
    for sample in run.samples(1):
        failed = sample["prompt_id"] % 2 == 0
        require_equal((sample["reward"] is None, sample.get("reward_failed", False)), (failed, failed), "samples/")
    require_equal((second["rollout/reward_failures"], second["train/samples"]), (1, 0), "step 2")
    require("train/loss" not in second and "rollout/reward_mean" not in second, f"step 2: {second}")
    require(run.ledger()[1] != run.ledger()[0], "step 1 taught nothing")
    require_equal(run.ledger()[2], run.ledger()[1], "weights after a step without rewards")
    require_parts(harness.read(run.file("logs/controller.log")),
                  ["their groups are not trained on", "left no sample to train on"], "the log")

    # The batches on disk say so too.
    alone = t.train("alone", {"run.steps": 2, "debug.mode": "train_only", "debug.load_batches": run.file("batches")})
    require_equal(alone.ledger(), run.ledger(), "weights of training on the recorded batches")
    result = json.loads(t.accord("replay", run.path, "--step", "2", "--json").out)
    require(result["equal"], f"replay: {result}")
    t.note(f"step 1 trains on {first['train/samples']:.0f} of 32 samples, step 2 on none")


def case_failures_end_the_run(t):
    command = script(t, "flaky.py", FLAKY)
    recipe = t.recipe("fail", {"reward": reward(command)})
    error = t.accord("run", recipe, "--allow-exec", expect=UNAVAILABLE).err
    require_parts(error, ["step 2", "2 of 2 attempts failed", "exit code 4", "no more today", "logs/reward.log"],
                  "error")
    require_equal(list(harness.Run(t.path("fail")).steps()), [1], "committed steps")
    require_no_orphans(t.path("flaky.py"))


def case_hanging_scorer(t):
    command = script(t, "hanging.py", HANGING)
    recipe = t.recipe("hang", {"reward": reward(command, deadline_s=1)})
    result = t.accord("run", recipe, "--allow-exec", expect=UNAVAILABLE)
    require_parts(result.error(), ["0 of 16 replies", "deadline_s", "thinking"], "error")
    run = t.train("on", {"run.steps": 1, "reward": reward(
        command, deadline_s=1, batch_size=32, on_failure="score", failure_score=0.0)}, ["--allow-exec"])
    require_equal(run.steps()[1]["rollout/reward_failures"], 1, "failures")
    require_no_orphans(t.path("hanging.py"))


def case_garbage(t):
    command = script(t, "garbage.py", GARBAGE)
    recipe = t.recipe("garbage", {"reward": reward(command)})
    error = t.accord("run", recipe, "--allow-exec", expect=BAD_DATA).error()
    require_parts(error, ["Loading model...", "not valid JSON"], "error")
    for policy in ({"on_failure": "score", "failure_score": 0.5}, {"on_failure": "drop"}):
        run = t.train(policy["on_failure"], {"run.steps": 1, "reward": reward(command, **policy)}, ["--allow-exec"])
        require_equal(run.steps()[1]["rollout/reward_failures"], 1, f"failures with {policy}")
    require_no_orphans(t.path("garbage.py"))


def case_services_that_fail(t):
    def external(address, **more):
        return {"reward": {"type": "external", "address": address, "retries": 0, "batch_size": 16, **more}}

    for fault, code, part in (("hang", UNAVAILABLE, "deadline_s"), ("nan", BAD_DATA, "finite"),
                              ("short", BAD_DATA, "15 rewards for 16 samples"), ("swap", BAD_DATA, "is for sample"),
                              ("refuse", UNAVAILABLE, "not now"), ("crash", UNAVAILABLE, "reward server")):
        with server(t, "math_dapo", fault, "2") as address:
            error = t.accord("run", t.recipe(fault, external(address, deadline_s=2)), expect=code).err
            require_parts(error, ["step 2", address, part], f"error of {fault}")
            require_equal(list(harness.Run(t.path(fault)).steps()), [1], f"committed steps with {fault}")
    with server(t, "math_dapo", "crash", "2") as address:
        run = t.train("drop", {"run.steps": 3, **external(address, on_failure="drop")})
        require_equal([row["rollout/reward_failures"] for row in run.steps().values()], [0, 1, 1], "failures")
    error = t.accord("run", t.recipe("nobody", external("127.0.0.1:1", deadline_s=1)), expect=UNAVAILABLE).error()
    require_parts(error, ["reward.address", "127.0.0.1:1"], "error")


def case_controller_killed(t):
    command = script(t, "hanging.py", HANGING)
    process, run = t.start_run("killed", {"reward": reward(command, deadline_s=600)}, ["--allow-exec"])
    harness.wait_for(lambda: os.path.exists(run.file("logs/reward.log"))
                     and "thinking" in harness.read(run.file("logs/reward.log")), "the scorer to think")
    process.kill()
    require_no_orphans(t.path("hanging.py"))


def case_worker_lost_while_scoring(t):
    command = script(t, "hanging.py", HANGING)
    process, run = t.start_run("lost", {"reward": reward(command, deadline_s=600)}, ["--allow-exec"])
    t.wait_status(process.address(), lambda s: s["phase"] == "reward", "the reward phase")
    worker = next(pid for pid, line in harness.processes_with(process.address()).items()
                  if "worker" in line and "--pool rollout" in line)
    os.kill(worker, harness.signal.SIGKILL)
    process.wait(harness.WORKER_LOST)
    require_no_orphans(t.path("hanging.py"))


def case_refused_without_consent(t):
    recipe = t.recipe("consent", {"reward": reward([sys.executable, EXAMPLE])})
    error = t.accord("run", recipe, expect=USAGE).error()
    require_parts(error, ["reward.command", EXAMPLE, "--allow-exec"], "error")
    require(not os.path.exists(t.path("consent")), "nothing is written")
    lines = harness.write(t.path("in.jsonl"), '{"response": "Answer: 34", "label": "34"}\n')
    t.accord("score", "--recipe", recipe, lines, "-", expect=USAGE)
    t.accord("eval", t.input("model"), "--recipe", recipe, "--data", t.input("data/holdout.jsonl"), expect=USAGE)
    require_parts(t.accord("plan", recipe).out, ["--allow-exec"], "plan")


def case_score_command(t):
    recipe = t.recipe("score", {"reward": reward([sys.executable, EXAMPLE], batch_size=2)})
    lines = harness.write(t.path("in.jsonl"), "".join(
        json.dumps({"prompt": "17 * 2?", "response": text, "label": "34", "note": i}) + "\n"
        for i, text in enumerate(["so\nAnswer: 34", "Answer: 34 or 35", "no idea"])))
    t.accord("score", "--recipe", recipe, "--allow-exec", lines, t.path("out.jsonl"))
    rows = harness.read_jsonl(t.path("out.jsonl"))
    require_equal([(row["note"], row["score"], row["pred"]) for row in rows],
                  [(0, 1.0, "34"), (1, -1.0, "34 or 35"), (2, -1.0, None)], "scores")
    error = t.accord("score", "--reward", "external", lines, "-", expect=USAGE).error()
    require_parts(error, ["--recipe"], "error")
    garbage = script(t, "garbage.py", "print('Loading model...')\nimport sys\nsys.stdin.read()\n")
    recipe = t.recipe("garbage", {"reward": reward(garbage)})
    error = t.accord("score", "--recipe", recipe, "--allow-exec", lines, "-", expect=BAD_DATA).err
    require_parts(error, ["Loading model..."], "error")
    t.accord("score", "--recipe", recipe, "--allow-exec", "--set", "reward.on_failure=drop", lines, t.path("failed"))
    require_equal([(row["score"], row["reward_failed"]) for row in harness.read_jsonl(t.path("failed"))],
                  [(None, True)] * 3, "lines without a score")


def case_eval_command(t):
    recipe = t.recipe("eval", {"reward": reward([sys.executable, EXAMPLE])})
    arguments = ["eval", t.input("model"), "--data", t.input("data/holdout.jsonl"), "--samples", "2",
                 "--max-tokens", "12", "--recipe", recipe, "--json", "--output"]
    external = t.accord(*arguments, t.path("external.jsonl"), "--allow-exec").out
    built_in = t.accord(*arguments, t.path("built-in.jsonl"), "--reward", "math_dapo").out
    require_equal(json.loads(external), json.loads(built_in), "summaries")
    require_equal([row["score"] for row in harness.read_jsonl(t.path("external.jsonl"))],
                  [row["score"] for row in harness.read_jsonl(t.path("built-in.jsonl"))], "scores")


if __name__ == "__main__":
    harness.main(globals())
