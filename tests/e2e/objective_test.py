"""The choices of the objective in a run: several updates per step, groups left out, corrections and penalties."""
import json
import math

import harness
from harness import require, require_equal

GROUP = harness.RECIPE["rollout"]["samples_per_prompt"]
PROMPTS = harness.RECIPE["rollout"]["prompts_per_step"]


def require_close(got, expected, what, tolerance=1e-9):
    require(abs(got - expected) <= tolerance, f"{what}: {got} where {expected} was expected")


def case_updates_per_step(t):
    run = t.train("three", {"trainer.updates_per_step": 3, "trainer.optimizer.lr": 3.0e-3,
                            "trainer.optimizer.schedule": "linear"})
    steps = run.steps()
    for step, row in steps.items():
        require_equal(row["train/updates"], 3, f"updates of step {step}")
        require_equal(row["mismatch/equal_fraction"], 1, f"equal log-probs of step {step}")
    # The schedule counts updates: the last one of step s is number 3s of 12, counted from 0.
    for step, row in steps.items():
        require_close(row["train/learning_rate"], 3.0e-3 * (1 - (3 * step - 1) / 12), f"rate of step {step}")
    require(any(row["train/clip_fraction"] > 0 for row in steps.values()), "no token was ever clipped")
    require(any(row["train/ppo_kl"] != 0 for row in steps.values()), "no ratio ever moved")
    require_equal(len(run.ledger()), 5, "versions: one per step, whatever the number of updates")
    one = t.train("one", {"trainer.optimizer.lr": 3.0e-3, "trainer.optimizer.schedule": "linear"})
    require_equal(one.ledger()[0], run.ledger()[0], "version 0")
    require(one.ledger()[1] != run.ledger()[1], "three updates left the weights of one")
    require(all(row["train/clip_fraction"] == 0 and "train/updates" not in row for row in one.steps().values()),
            "a single update has nothing to clip")
    t.note("clip fractions with three updates: " + ", ".join(f"{row['train/clip_fraction']:.3f}"
                                                             for row in steps.values()))


def case_filter_zero_std(t):
    run = t.train("some", {"algorithm.filter_zero_std": True})
    filtered = 0
    for step, row in run.steps().items():
        left = round((1 - row["rollout/zero_std_fraction"]) * PROMPTS * GROUP)
        filtered += PROMPTS * GROUP - left
        require_equal(row["train/samples"], left, f"samples of step {step}")
        require_equal(row["train/updates"], 1 if left else 0, f"updates of step {step}")
    require(filtered > 0, "no group was left out")
    # Almost greedy: the samples of a group are equal, so are their rewards.
    result = t.accord("run", t.recipe("none", {"algorithm.filter_zero_std": True,
                                               "rollout.temperature": 0.001}))
    none = harness.Run(t.path("none"))
    for step, row in none.steps().items():
        require_equal(row["train/samples"], 0, f"samples of step {step}")
        require_equal(row["train/updates"], 0, f"updates of step {step}")
        require("train/loss" not in row, f"step {step} has a loss without a sample")
        require(f"step {step}: the rewards of each group are all equal" in result.err, f"no warning of step {step}")
    require(all(version == none.ledger()[0] for version in none.ledger()), "the weights moved without an update")
    t.note(f"{filtered} of {4 * PROMPTS * GROUP} samples left out; without any sample the weights stay")


def case_importance_correction_of_equal_logprobs_changes_nothing(t):
    plain = t.train("plain", {"run.steps": 2})
    for correction in ("tis", "mis"):
        corrected = t.train(correction, {"run.steps": 2, "algorithm.importance_correction": correction})
        require_equal(corrected.ledger(), plain.ledger(), f"{correction}: digests")
        for step, row in corrected.steps().items():
            require_equal(row["train/importance_mean"], 1, f"{correction}: weights of step {step}")
            require_equal(row["train/importance_clip_fraction"], 0, f"{correction}: bounded weights of step {step}")


def case_routing_replay_of_equal_routing_changes_nothing(t):
    # Both kinds of layers: the first of two is dense.
    config = json.loads(harness.read(harness.SOURCE + "/configs/quickstart/config.json"))
    config["mlp_only_layers"] = [0]
    t.accord("init-model", harness.write(t.path("mixed.json"), json.dumps(config)), t.path("mixed"),
             "--tokenizer", harness.SOURCE + "/configs/quickstart/tokenizer")
    for name, changes in (("moe", {"algorithm.importance_correction": "tis"}),
                          ("two-trainers", {"trainer.workers": 2}),
                          ("mixed", {"model.checkpoint": t.path("mixed")})):
        changes = {"run.steps": 2, **changes}
        plain = t.train(name, changes)
        replayed = t.train(name + "-replayed", {**changes, "algorithm.routing_replay": True})
        require_equal(replayed.ledger(), plain.ledger(), f"{name}: digests")
        require_equal(replayed.samples(2), plain.samples(2), f"{name}: samples of step 2")
        for step, row in replayed.steps().items():
            require_equal(row["mismatch/expert_overlap"], 1, f"{name}: equal choices of step {step}")
            require_equal(row["mismatch/equal_fraction"], 1, f"{name}: equal log-probs of step {step}")
        require("mismatch/expert_overlap" not in plain.steps()[1], f"{name}: an overlap without recorded routing")
    # Later updates of a step follow the sampler's routing too; what the metric compares is the first one.
    updates = t.train("updates", {"run.steps": 1, "trainer.updates_per_step": 2, "algorithm.routing_replay": True})
    require_equal(updates.steps()[1]["mismatch/expert_overlap"], 1, "equal choices with two updates")
    config["mlp_only_layers"] = list(range(config["num_hidden_layers"]))
    t.accord("init-model", harness.write(t.path("dense.json"), json.dumps(config)), t.path("dense"),
             "--tokenizer", harness.SOURCE + "/configs/quickstart/tokenizer")
    recipe = t.recipe("dense", {"model.checkpoint": t.path("dense"), "algorithm.routing_replay": True})
    for command in ("run", "plan"):
        require("algorithm.routing_replay: " in t.accord(command, recipe, expect=harness.BAD_RECIPE).error(),
                f"{command}: routing replay without experts")


def case_kl_to_a_reference(t):
    fast = {"trainer.optimizer.lr": 3.0e-3, "precision": {}}
    plain = t.train("plain", fast)
    measured = t.train("measured", {**fast, "algorithm.reference_kl": True})
    require_equal(measured.ledger(), plain.ledger(), "digests with a coefficient of 0")
    require("train/ref_kl" not in plain.steps()[1], "a distance from nothing")
    require_equal(measured.steps()[1]["train/ref_kl"], 0, "distance of a BF16 policy from its own checkpoint")
    kl = {step: row["train/ref_kl"] for step, row in measured.steps().items()}
    require(all(kl[step] > 0 for step in kl if step > 1), f"no distance from the reference: {kl}")
    held = t.train("held", {**fast, "algorithm.kl_coefficient": 2.0, "model.reference": t.input("model")})
    near = {step: row["train/ref_kl"] for step, row in held.steps().items()}
    require_equal(near[1], 0, "distance of step 1")
    require(held.ledger()[-1] != plain.ledger()[-1], "a KL term that changes nothing")
    require(near[4] < kl[4], f"held {near[4]}, free {kl[4]}")
    t.note(f"ref_kl of step 4: {near[4]:.5f} with a coefficient of 2, {kl[4]:.5f} without")

    two = {**fast, "trainer.workers": 2, "run.steps": 2}
    free, seen = t.train("two-trainers", two), t.train("two-measured", {**two, "algorithm.reference_kl": True})
    require_equal(seen.ledger(), free.ledger(), "digests of two trainers with a coefficient of 0")
    require_equal(seen.steps()[1]["train/ref_kl"], 0, "distance of step 1 with two trainers")
    require(seen.steps()[2]["train/ref_kl"] > 0, "no distance of two trainers from the reference")

    # The same run in two parts: the reference is read again, and no bit differs.
    changes = {**fast, "algorithm.kl_coefficient": 2.0, "run.steps": 2}
    parts = t.train("parts", changes)
    t.accord("run", t.recipe("parts", {**changes, "run.steps": 4}), "--resume")
    require_equal(parts.ledger(), held.ledger(), "digests after a resume")
    require_equal(parts.stable_lines(), held.stable_lines(), "metrics after a resume")

    # A policy that is quantized or was warmed up is away from the checkpoint that it started with.
    for name, change in (("mxfp8", {}),
                         ("warm", {"precision": {}, "sft": {"path": t.input("data/sft.jsonl"), "steps": 2,
                                                            "optimizer": {"lr": 1.0e-3}}})):
        run = t.train(name, {"run.steps": 1, "algorithm.reference_kl": True, **change})
        require(run.steps()[1]["train/ref_kl"] > 0, f"{name}: no distance from the BF16 checkpoint")


def case_references_that_do_not_fit_are_refused(t):
    config = json.loads(harness.read(harness.SOURCE + "/configs/quickstart/config.json"))
    config["vocab_size"] += 1
    t.accord("init-model", harness.write(t.path("wide.json"), json.dumps(config)), t.path("wide"))
    for command in ("run", "plan"):
        wide = t.accord(command, t.recipe("wide-run", {"algorithm.reference_kl": True, "model.reference": t.path("wide")}),
                        expect=harness.BAD_DATA)
        harness.require_parts(wide.error(), ["model.reference: ", t.path("wide"), t.input("model"), "321", "320"], command)
        unused = t.accord(command, t.recipe("unused", {"model.reference": t.input("model")}), expect=harness.BAD_RECIPE)
        harness.require_parts(unused.error(), ["model.reference: does nothing without"], command)
    plan = json.loads(t.accord("plan", t.recipe("good", {"algorithm.reference_kl": True}), "--json").out)
    require(plan["memory_bytes"]["trainer_worker"]["reference"] > 0, "the plan does not count the reference")


def case_overlong_penalty(t):
    buffer, factor, limit = 6, 0.5, harness.RECIPE["rollout"]["max_response_tokens"]
    run = t.train("overlong", {"algorithm.overlong_penalty": {"buffer_tokens": buffer, "factor": factor}})
    penalized = 0
    for step, row in run.steps().items():
        for sample in run.samples(step):
            over = max(0, sample["response_length"] - (limit - buffer))
            penalty = -factor if sample["truncated"] else -factor * over / buffer
            penalized += penalty < 0
            require(any(math.isclose(sample["reward"], score + penalty) for score in (-1, 1)),
                    f"step {step}: reward {sample['reward']} with a penalty of {penalty}")
        require(-factor <= row["rollout/overlong_penalty_mean"] <= 0, f"mean penalty of step {step}")
    require(penalized > 0, "no sample was penalized")
    require(any(row["rollout/overlong_penalty_mean"] < 0 for row in run.steps().values()), "no penalty")


def case_other_losses(t):
    plain = t.train("plain", {"run.steps": 2})
    for name, change in (("mean", {"algorithm.advantage": "mean"}),
                         ("leave-one-out", {"algorithm.advantage": "leave-one-out"}),
                         ("sequences", {"algorithm.aggregate": "seq-mean-token-mean"}),
                         ("sums", {"algorithm.aggregate": "seq-mean-token-sum"}),
                         ("entropy", {"algorithm.entropy_coefficient": 0.05})):
        run = t.train(name, {"run.steps": 2, "algorithm.clip_dual": 3.0, **change})
        require_equal(run.ledger()[0], plain.ledger()[0], f"{name}: version 0")
        require_equal(run.samples(1), plain.samples(1), f"{name}: samples of step 1")
        row, reference = run.steps()[1], plain.steps()[1]
        require(row["train/grad_norm"] != reference["train/grad_norm"], f"{name}: the gradient is the default's")
        require_equal(row["mismatch/equal_fraction"], 1, f"{name}: equal log-probs")
        if name == "entropy":
            require_close(row["train/loss"], reference["train/loss"] - 0.05 * reference["train/entropy"],
                          "loss with an entropy term")


if __name__ == "__main__":
    harness.main(globals())
