"""Several trainers train one policy: the same bits again and again for a given pool, the same policy as in
rollout, and what one trainer computes up to the order of fp32 sums."""
import json
import os
import shutil
import signal

import harness
from harness import WORKER_LOST, require, require_equal, require_parts

SFT = {"steps": 3, "batch_size": 13, "optimizer": {"lr": 1.0e-3, "weight_decay": 0.0}}
# The experts in NVFP4, whose gate and up share a scale, the other linear layers in MXFP8.
MIXED = {"configs": {"nvfp4": {"format": "nvfp4"}, "mxfp8": {"format": "mxfp8"}},
         "matchers": [{"name": "experts", "pattern": "*.mlp.experts.*", "config": "nvfp4"},
                      {"name": "rest", "pattern": "*", "config": "mxfp8"}]}
FORWARD_ONLY = ("train/loss", "train/entropy", "train/clip_fraction", "mismatch/equal_fraction",
                "mismatch/logprob_abs_diff_max")


def pool(trainers, rollouts=4, **more):
    return {"trainer.workers": trainers, "rollout.workers": rollouts, "checkpoint.every": 0, **more}


def require_same(run, reference, what):
    require_equal(run.stable_lines(), reference.stable_lines(), f"{what}: metrics.jsonl")
    require_equal(run.ledger(), reference.ledger(), f"{what}: ledger digests")
    last = max(reference.steps())
    require(run.weights(last) == reference.weights(last), f"{what}: the final weights differ")


def require_equal_policy(run, what):
    for step, row in run.steps().items():
        require_equal(row["mismatch/equal_fraction"], 1, f"{what}, step {step}: equal_fraction")
    ledger = run.ledger()
    require(sum(a != b for a, b in zip(ledger, ledger[1:])) >= 2, f"{what}: too few steps changed the weights")


def case_four_by_four(t):
    changes = {"run.steps": 4, "sft": {**SFT, "path": t.input("data/sft.jsonl")}, "trainer.updates_per_step": 2}
    for name, precision in (("mxfp8", harness.MXFP8), ("mixed", MIXED)):
        reference = t.train(name, pool(4, **changes, precision=precision))
        require_equal_policy(reference, name)
        require_same(t.train(name + "-again", pool(4, **changes, precision=precision)), reference, "the same again")
    for rollouts in (1, 3):
        require_same(t.train(f"rollout-{rollouts}", pool(4, rollouts, **changes, precision=MIXED)), reference,
                     f"{rollouts} rollout workers")
    t.note(f"4 + 4 workers, twice, MXFP8 and NVFP4 experts; 4 trainers with 1 and 3 rollout workers: the same bits; "
           f"equal_fraction 1; last loss {reference.metrics()[-1]['train/loss']}")


def case_corrupted_byte(t):
    run = t.train("corrupt", pool(4, **{"run.steps": 3, "debug.corrupt_rollout":
                                        {"rank": 2, "version": 1, "byte": 300}}))
    equal = {step: row["mismatch/equal_fraction"] for step, row in run.steps().items()}
    require(equal[1] == 1 and equal[3] == 1 and 0.3 < equal[2] < 1, f"equal_fraction by step: {equal}")
    t.note(f"byte 300 flipped on rollout/2 at version 1: equal_fraction {equal}")


def case_any_number_of_trainers(t):
    """One step: the forward is the same to the bit, the gradient up to the order of its sums."""
    one = t.train("one", pool(1, 2, **{"run.steps": 1})).steps()[1]
    differences = {}
    for trainers in (2, 3, 4):
        row = t.train(f"trainers-{trainers}", pool(trainers, 2, **{"run.steps": 1})).steps()[1]
        for name in FORWARD_ONLY:
            require_equal(row[name], one[name], f"{trainers} trainers: {name}")
        differences[trainers] = abs(row["train/grad_norm"] / one["train/grad_norm"] - 1)
        require(differences[trainers] < 1e-5, f"{trainers} trainers: grad_norm {row['train/grad_norm']}, "
                f"one trainer: {one['train/grad_norm']}")
    t.note(f"2, 3, 4 trainers: the loss of one trainer, bit by bit; grad_norm differs by {differences}")


def case_expert_parallel(t):
    """Experts spread over trainers: the forward is the same to the bit."""
    spread = {}
    for places in (1, 2, 4):
        changes = pool(4, 2, **{"run.steps": 3, "trainer.expert_parallel": places, "precision": MIXED,
                             "trainer.device": "cpu"})  # one place, too: sums on CUDA differ
        spread[places] = t.train(f"places-{places}", changes)
        require_equal_policy(spread[places], f"{places} places")
        require_same(t.train(f"places-{places}-again", changes), spread[places], f"{places} places again")
        for name in FORWARD_ONLY:
            require_equal(spread[places].steps()[1][name], spread[1].steps()[1][name], f"{places} places: {name}")
        norms = [spread[p].steps()[1]["train/grad_norm"] for p in (places, 1)]
        require(abs(norms[0] / norms[1] - 1) < 1e-5, f"{places} places: grad_norm {norms[0]}, one place {norms[1]}")
    t.note("4 trainers with 1, 2 and 4 places: the same loss, bit by bit, equal_fraction 1, each twice the same")


def case_fewer_samples_than_trainers(t):
    run = t.train("few", pool(4, 2, **{"run.steps": 3, "rollout.prompts_per_step": 1, "rollout.samples_per_prompt": 3}))
    require_equal(len(run.steps()), 3, "steps")
    require(all(row["mismatch/equal_fraction"] == 1 for row in run.steps().values()), "equal_fraction")


def case_resume(t):
    """The same pool goes on bit by bit; another one reads the state of the first."""
    steps = {"run.steps": 6}
    reference = t.train("reference", pool(4, **steps))
    recipe = t.recipe("legs", pool(4, **steps))
    t.accord("run", recipe, "--steps", "3")
    run = harness.Run(t.path("legs"))
    names = sorted(name for name in os.listdir(run.checkpoint(3)) if name.startswith("training_state"))
    require_equal(names, [f"training_state-{i:05}-of-00004.safetensors" for i in (1, 2, 3, 4)], "state files")
    shutil.copytree(run.path, t.path("two"))
    t.accord("run", recipe, "--resume")
    require_same(run, reference, "3 + 3 steps")
    t.accord("run", t.recipe("two", pool(2, **steps)), "--resume")
    two = harness.Run(t.path("two"))
    require_equal(two.ledger()[:4], reference.ledger()[:4], "the versions up to the resume, exported by two trainers")
    require_equal(len(two.steps()), 6, "steps with two trainers")
    os.remove(two.checkpoint(6) + "/training_state-00002-of-00002.safetensors")
    error = t.accord("run", t.recipe("two", pool(2, **{"run.steps": 7})), "--resume").err
    require_parts(error, ["checkpoint of step 6 is not used"], "the log after a state file went missing")


def case_lost_trainer(t):
    controller, run = t.start_run("lost", pool(4, 2, **{"run.steps": 1000, "checkpoint.every": 1}))
    address = controller.address()
    status = t.wait_status(address, lambda s: s["step"] >= 1, "step 1")
    pids = {worker["name"]: worker["pid"] for worker in status["workers"]}
    os.kill(pids["trainer/2"], signal.SIGKILL)
    controller.wait(expect=WORKER_LOST)
    require_parts(controller.log(), ["trainer/2 was lost"], "the message")
    harness.wait_for(lambda: not harness.processes_with(address), "the end of the run's processes",
                     timeout=15 * harness.TIME_FACTOR)
    steps = len(run.steps())
    t.accord("run", t.recipe("lost", pool(4, 2)), "--resume", "--steps", str(steps + 1))


def case_replay(t):
    """A recorded step again, by as many trainers as the run had."""
    run = t.train("recorded", pool(4, 2, **{"run.steps": 3, "checkpoint.every": 1, "debug": {"dump_batches": True},
                                            "trainer.updates_per_step": 2}))
    result = json.loads(t.accord("replay", run.path, "--step", "3", "--json").out)
    require(result["equal"], f"the replay of step 3: {result}")


def case_refused(t):
    for changes, parts in (
            ({"trainer.expert_parallel": 3, "trainer.workers": 4}, ["trainer.expert_parallel", "3", "4"]),
            ({"trainer.expert_parallel": 2, "trainer.workers": 1}, ["trainer.expert_parallel"]),
            ({"trainer.expert_parallel": 16, "trainer.workers": 16}, ["expert_parallel", "experts"])):
        error = t.accord("plan", t.recipe("refused", changes), expect=harness.BAD_RECIPE).error()
        require_parts(error, parts, str(changes))


if __name__ == "__main__":
    harness.main(globals())
