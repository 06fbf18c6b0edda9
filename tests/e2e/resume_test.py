"""A run that was stopped, and one whose newest checkpoint is damaged, go on as if nothing had happened."""
import os
import re
import shutil

import harness
from harness import DRAINED, require, require_equal, require_parts

STEPS = 7  # step 6 crosses an epoch of the 42 prompts
# Long enough for `accord stop` to come in time.
LONG = {"run.steps": 24, "rollout.samples_per_prompt": 16, "trainer.tokens_per_microbatch": 1024,
        "checkpoint.every": 0}


def reference_run(t):
    return t.train("reference", {"run.steps": STEPS})


def require_continued(run, reference, last, what):
    """Contiguous steps up to `last`, the prompts of the uninterrupted run, and its bits."""
    require_equal([row["step"] for row in run.metrics()], list(range(last + 1)), f"{what}: steps")
    for step in range(1, last + 1):
        require_equal(run.prompt_ids(step), reference.prompt_ids(step), f"{what}: prompts of step {step}")
        require_equal(run.samples(step), reference.samples(step), f"{what}: samples of step {step}")
    for got, expected in zip(run.stable_lines(), reference.stable_lines()):
        require_equal(got, expected, f"{what}: a line of metrics.jsonl")
    require_equal(run.ledger(), reference.ledger(), f"{what}: ledger digests")
    require(run.weights(last) == reference.weights(last), f"{what}: the final weights differ")
    prompts = [tuple(reference.prompt_ids(step)) for step in range(1, last + 1)]
    require(len(set(prompts)) > last / 2, "the prompts of the steps must differ for this to say anything")


def interrupt(t, command, code, word, changes, arguments, after):
    """Runs "stopped" until `command` ends it in a step beyond `after`; returns the last step."""
    controller, run = t.start_run("stopped", changes, arguments)
    address = controller.address()
    harness.wait_for(lambda: os.path.exists(run.file(f"samples/step_{after + 1:06}.jsonl")), f"step {after + 1}")
    out = t.accord(command, address, "--reason", "end to end test").out
    controller.wait(expect=code)
    done = run.metrics()[-1]["step"]
    last = LONG["run.steps"]
    require(after < done < last, f"{command} ended the run after step {done}, too late for this test")
    require_parts(out, [f"the run ends after step {done}"], f"the answer to {command}")
    require_parts(controller.log(), [f"{word} after step {done} of {last}", "end to end test", "--resume"], "the log")
    require(os.path.isdir(run.checkpoint(done)), f"no checkpoint of step {done}")
    return done


def case_stop_drain_and_resume(t):
    reference = t.train("reference", LONG)
    # Checkpoints are never due: those below are written because the run is ended.
    one, two = {**LONG, "rollout.workers": 1}, {**LONG, "rollout.workers": 2}
    stopped = interrupt(t, "stop", 0, "stopped", one, (), after=1)
    drained = interrupt(t, "drain", DRAINED, "drained", two, ("--resume",), after=stopped)
    run = harness.Run(t.path("stopped"))
    require_equal(sorted(n for n in os.listdir(run.file("checkpoints")) if n.startswith("step_")),
                  sorted(f"step_{step}" for step in (stopped, drained)), "checkpoints")
    t.accord("run", t.recipe("stopped", one), "--resume")
    require_continued(run, reference, LONG["run.steps"], "stopped and resumed")
    t.note(f"stopped after step {stopped} (exit 0), resumed, drained after step {drained} (exit 75), resumed to "
           f"{LONG['run.steps']}, with 1, 2 and 1 rollout workers: metrics, samples, digests and weights equal the "
           "uninterrupted run's, bit by bit")


def case_checkpoint_on_demand(t):
    controller, run = t.start_run("run", LONG)
    address = controller.address()
    harness.wait_for(lambda: os.path.exists(run.file("samples/step_000001.jsonl")), "step 1")
    out = t.accord("checkpoint", address).out
    step = int(re.search(r"after step (\d+)", out).group(1))
    harness.wait_for(lambda: os.path.isdir(run.checkpoint(step)), f"the checkpoint of step {step}")
    controller.wait(expect=0)
    require(step < LONG["run.steps"], "the request came too late for this test")
    require_equal(len(run.steps()), LONG["run.steps"], "steps: the run goes on after the checkpoint")
    t.note(f"accord checkpoint: {out.strip()}")


def case_stopped_twice(t):
    """--steps and --resume in turn; each leg ends with a checkpoint."""
    reference = reference_run(t)
    recipe = t.recipe("legs", {"run.steps": STEPS, "checkpoint.every": 0})
    t.accord("run", recipe, "--steps", "3")
    t.accord("run", recipe, "--resume", "--steps", "5")
    t.accord("run", recipe, "--resume")
    require_continued(harness.Run(t.path("legs")), reference, STEPS, "three legs")
    t.note("3 + 2 + 2 steps equal 7 steps, bit by bit")


def case_mixture_of_files(t):
    """Two files with weights: an interrupted run draws the prompts of one that was not, whatever the workers."""
    data = t.input("data/train.jsonl")
    files = [{"path": data + "@[:10]", "weight": 3}, {"path": data + "@[10:]", "weight": 1}]
    changes = {"run.steps": STEPS, "data.train": files}
    reference = t.train("reference", changes)
    t.accord("run", t.recipe("legs", {**changes, "rollout.workers": 1}), "--steps", "3")
    t.accord("run", t.recipe("legs", changes), "--resume")
    require_continued(harness.Run(t.path("legs")), reference, STEPS, "two legs")
    drawn = [i for step in range(1, STEPS + 1) for i in sorted(set(reference.prompt_ids(step)))]
    first = sum(i < 2**40 for i in drawn)
    require(all(i < 10 if i < 2**40 else 10 <= i - 2**40 < 42 for i in drawn), f"prompts outside of the parts: {drawn}")
    require(abs(first / len(drawn) - 0.75) < 0.2, f"{first} of {len(drawn)} prompts are the first file's")
    for what, other in (("weights", [{**files[0], "weight": 2}, files[1]]), ("files", files[:1])):
        error = t.accord("run", t.recipe("legs", {**changes, "run.steps": 9, "data.train": other}), "--resume",
                         expect=harness.BAD_RECIPE).error()
        require_parts(error, ["the order of prompts would differ"], f"other {what}")
    t.note(f"{first} of {len(drawn)} prompts of the file with three quarters of the weight; resumed bit by bit")


def case_damaged_checkpoint_and_interrupted_write(t):
    reference = reference_run(t)  # checkpoints of steps 2, 4, 6 and 7
    for name, damage, reason in (
            ("flipped", lambda d: harness.flip_byte(d + "/training_state-00001-of-00001.safetensors", 40000), "its content"),
            ("truncated", lambda d: os.truncate(d + "/hf/model.safetensors", 1000), "bytes"),
            ("missing", lambda d: os.remove(d + "/state.json"), "state.json")):
        path = t.path(name)
        shutil.copytree(reference.path, path)
        run = harness.Run(path)
        damage(run.checkpoint(7))
        interrupted = harness.write(run.checkpoint(9) + ".tmp/training_state-00001-of-00001.safetensors", "half a file")
        err = t.accord("run", t.recipe(name, {"run.steps": STEPS}), "--resume").err
        line = next((line for line in err.splitlines() if "checkpoint of step 7 is not used" in line), "")
        require_parts(line, [reason], f"{name}: the reason for passing over step 7 in:\n{err}")
        require_parts(err, [f"resuming from {run.checkpoint(6)}"], f"{name}: the log")
        require_parts(harness.read(run.file("logs/controller.log")), [line.split("warning ")[-1]], "controller.log")
        require(not os.path.exists(os.path.dirname(interrupted)), f"{name}: step_9.tmp is still there")
        require_continued(run, reference, STEPS, name)
        t.note(f"{name}: {line.split('warning ')[-1].strip()}")

    # With no sound checkpoint left nothing is started over.
    path = t.path("hopeless")
    shutil.copytree(reference.path, path)
    run = harness.Run(path)
    for step in (2, 4, 6, 7):
        harness.flip_byte(run.checkpoint(step) + "/training_state-00001-of-00001.safetensors", 40000)
    lines = run.metrics()
    error = t.accord("run", t.recipe("hopeless", {"run.steps": 9}), "--resume", expect=harness.BAD_DATA).error()
    require_parts(error, ["none of its checkpoints verifies"], "the error")
    require_equal(run.metrics(), lines, "metrics after the refusal")


if __name__ == "__main__":
    harness.main(globals())
