"""Rewards of another program: a run with them, the policies for failures, and what is refused."""
import json
import os
import sys

import harness
from harness import BAD_DATA, UNAVAILABLE, USAGE, require, require_equal, require_parts

EXAMPLE = os.path.join(harness.SOURCE, "scripts/reward_example.py")

FLAKY = """import json, os, sys
for line in sys.stdin:
    r = json.loads(line)
    assert r["messages"][-1]["role"] == "user" and r["messages"][-1]["content"] and r["set"] == "train", r
    if r["step"] == 2 and r["index"] == 1:
        print("no more today", file=sys.stderr, flush=True)
        os._exit(4)
    print(json.dumps({"id": r["id"], "score": len(r["response"]) / 8, "extra": {"of": r["count"]}}), flush=True)
"""
HANGING = "import sys, time\nprint('thinking', file=sys.stderr, flush=True)\ntime.sleep(1000)\n"


def reward(command, **more):
    return {"type": "external", "command": command, "retries": 1, **more}


def script(t, name, text):
    return [sys.executable, "-u", harness.write(t.path(name), text)]


def require_no_orphans(text):
    harness.wait_for(lambda: not harness.processes_with(text), f"the processes with {text} to end")


def case_run_with_the_example(t):
    changes = {"run.steps": 2, "reward": reward([sys.executable, EXAMPLE], batch_size=5)}
    whole = t.train("whole", changes, ["--allow-exec"])
    changes["reward"] = reward([sys.executable, EXAMPLE], batch_size=100)
    other = t.train("other", changes, ["--allow-exec"])
    require_equal(other.stable_lines(), whole.stable_lines(), "metrics with other batches")
    require_equal(other.ledger(), whole.ledger(), "weights with other batches")
    require("rollout/reward_failures" not in whole.steps()[1], "failures cannot occur with on_failure: fail")
    require_no_orphans(EXAMPLE)


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
    require_no_orphans(t.path("flaky.py"))


def case_failures_end_the_run(t):
    command = script(t, "flaky.py", FLAKY)
    recipe = t.recipe("fail", {"reward": reward(command)})
    error = t.accord("run", recipe, "--allow-exec", expect=UNAVAILABLE).error()
    require_parts(error, ["step 2", "attempts failed", "exit code 4", "no more today", "logs/reward.log"], "error")
    require_equal(list(harness.Run(t.path("fail")).steps()), [1], "committed steps")
    require_no_orphans(t.path("flaky.py"))


def case_hanging_scorer(t):
    command = script(t, "hanging.py", HANGING)
    recipe = t.recipe("hang", {"reward": reward(command, deadline_s=1)})
    result = t.accord("run", recipe, "--allow-exec", expect=UNAVAILABLE)
    require_parts(result.error(), ["0 of 16 replies", "deadline_s", "thinking"], "error")
    require_no_orphans(t.path("hanging.py"))


def case_controller_killed(t):
    command = script(t, "hanging.py", HANGING)
    process, run = t.start_run("killed", {"reward": reward(command, deadline_s=600)}, ["--allow-exec"])
    harness.wait_for(lambda: os.path.exists(run.file("logs/reward.log"))
                     and "thinking" in harness.read(run.file("logs/reward.log")), "the scorer to think")
    process.kill()
    require_no_orphans(t.path("hanging.py"))


def case_refused_without_consent(t):
    recipe = t.recipe("consent", {"reward": reward([sys.executable, EXAMPLE])})
    error = t.accord("run", recipe, expect=USAGE).error()
    require_parts(error, ["reward.command", EXAMPLE, "--allow-exec"], "error")
    require(not os.path.exists(t.path("consent")), "nothing is written")
    lines = harness.write(t.path("in.jsonl"), '{"response": "so 34", "label": "34"}\n')
    t.accord("score", "--recipe", recipe, lines, "-", expect=USAGE)
    require_parts(t.accord("plan", recipe).out, ["--allow-exec"], "plan")


def case_score_command(t):
    recipe = t.recipe("score", {"reward": reward([sys.executable, EXAMPLE], batch_size=2)})
    lines = harness.write(t.path("in.jsonl"), "".join(
        json.dumps({"prompt": "17 * 2?", "response": text, "label": "34", "note": i}) + "\n"
        for i, text in enumerate(["so 34", "34 or 35", "no idea"])))
    rows = [json.loads(line) for line in
            t.accord("score", "--recipe", recipe, "--allow-exec", lines, "-").out.splitlines()]
    require_equal([(row["note"], row["score"], row["pred"]) for row in rows],
                  [(0, 1.0, "34"), (1, 0.1, "35"), (2, 0.0, None)], "scores")
    garbage = script(t, "garbage.py", "print('Loading model...')\nimport sys\nsys.stdin.read()\n")
    recipe = t.recipe("garbage", {"reward": reward(garbage)})
    error = t.accord("score", "--recipe", recipe, "--allow-exec", lines, "-", expect=BAD_DATA).error()
    require_parts(error, ["Loading model..."], "error")


if __name__ == "__main__":
    harness.main(globals())
