"""Debug modes: the batches of steps on disk, sampling without training, training without sampling, and a run
that is computed again from what it recorded."""
import json
import os
import struct

import harness
from harness import BAD_DATA, BAD_RECIPE, USAGE, require, require_equal, require_parts

SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U8": 1}
CODES = {"F64": "d", "I64": "q", "F32": "f", "I32": "i", "U8": "B"}
WHOLE = {"F64": "Q", "F32": "I"}  # bit patterns


def values(tensor, bits=False):
    dtype, _, data = tensor
    code = WHOLE.get(dtype, CODES[dtype]) if bits else CODES[dtype]
    return list(struct.unpack(f"<{len(data) // SIZES[dtype]}{code}", data))


def train_lines(run, names=("train/", "mismatch/", "rollout/reward", "rollout/response")):
    return {step: {name: value for name, value in row.items() if name.startswith(names)}
            for step, row in run.steps().items()}


def recorded_run(t, changes=None):
    return t.train("recorded", {"run.steps": 4, "debug.dump_batches": True, **(changes or {})})


def batch(run, step):
    return run.file(f"batches/step_{step:06}.safetensors")


def case_dump(t):
    """The file of a step holds what it trained on; writing it changes nothing."""
    run = recorded_run(t)
    plain = t.train("plain")
    require_equal(run.stable_lines(), plain.stable_lines(), "metrics with and without the batches")
    require_equal(run.ledger(), plain.ledger(), "ledgers with and without the batches")
    for step in range(1, 5):
        tensors = harness.read_safetensors(batch(run, step))
        rows, length = tensors["input_ids"][1]
        require_equal(rows, 32, "samples")
        prompt, total = values(tensors["prompt_len"]), values(tensors["total_len"])
        require_equal(max(total), length, "the padded length")
        rewards, advantages = values(tensors["rewards"]), values(tensors["advantages"])
        mean = sum(rewards) / rows
        require(abs(mean - run.steps()[step]["rollout/reward_mean"]) < 1e-12, f"mean reward of step {step}: {mean}")
        require(all(abs(sum(advantages[g:g + 4])) < 1e-9 for g in range(0, rows, 4)), "advantages of a group sum to 0")
        lengths = [t - p for p, t in zip(prompt, total)]
        require_equal(sum(lengths) / rows, run.steps()[step]["rollout/response_length_mean"], "response lengths")
        ids, index = values(tensors["prompt_id"]), values(tensors["sample_index"])
        require_equal(len(set(zip(ids, index))), rows, "different samples")
        texts = run.samples(step)
        require_equal([s["prompt_id"] for s in texts], ids[:16], "prompt ids of the samples that are written out")
        require_equal([s["reward"] for s in texts], rewards[:16], "rewards of the samples that are written out")
        logprobs = values(tensors["old_logprobs"])
        width = length - 1
        for b in range(rows):
            row = logprobs[b * width:(b + 1) * width]
            inside = row[prompt[b] - 1:total[b] - 1]
            require(all(x < 0 for x in inside), f"log-probs of sample {b}: {inside}")
            require(not any(row[:prompt[b] - 1]) and not any(row[total[b] - 1:]), "log-probs outside the response")
    t.note("4 files of 32 samples; metrics and ledger are those of a run without them")


def case_routing_is_recorded(t):
    """With routing replay the batches hold the experts too, and a step is computed again with them."""
    run = recorded_run(t, {"run.steps": 2, "algorithm.routing_replay": True})
    tensors = harness.read_safetensors(batch(run, 2))
    rows, length, layers, chosen = tensors["routing"][1]
    require_equal([rows, length, layers, chosen], tensors["input_ids"][1] + [2, 2], "shape of the routing")
    ids, total = values(tensors["routing"]), values(tensors["total_len"])
    for b in range(rows):
        row = ids[b * length * 4:(b + 1) * length * 4]
        inside = (total[b] - 1) * 4
        require(all(0 <= id < 4 for id in row[:inside]) and set(row[inside:]) <= {-1}, f"experts of sample {b}")
    replayed = json.loads(t.accord("replay", run.path, "--step", "2", "--json").out)
    require_equal(replayed["equal"], True, "the step computed again")
    trained = t.train("trained", {"run.steps": 2, "algorithm.routing_replay": True, "debug.mode": "train_only",
                                  "debug.load_batches": run.file("batches")})
    require_equal(trained.ledger(), run.ledger(), "digests of training on the recorded batches")
    plain = t.train("plain", {"run.steps": 1, "debug.dump_batches": True})
    require("routing" not in harness.read_safetensors(batch(plain, 1)), "routing without replay")
    error = t.accord("run", t.recipe("none", {"run.steps": 1, "algorithm.routing_replay": True,
                                              "debug.mode": "train_only",
                                              "debug.load_batches": plain.file("batches")}),
                     expect=BAD_RECIPE).error()
    require_parts(error, ["was recorded without routing", "algorithm.routing_replay"], "the error")


def case_rollout_only(t):
    run = t.train("rollout", {"run.steps": 3, "debug.mode": "rollout_only", "debug.dump_batches": True,
                              "checkpoint.every": 1})
    require_equal(len(run.ledger()), 1, "weight versions")
    for step, row in run.steps().items():
        require_equal(row["sync/version"], 0, f"version of step {step}")
        require_equal(row["train/updates"], 0, f"updates of step {step}")
        require("train/loss" not in row and row["rollout/tokens_per_second"] > 0, f"metrics of step {step}: {row}")
    full = t.train("full", {"run.steps": 1})
    require_equal(run.samples(1), full.samples(1), "samples of the first step, with training or without")
    require(not harness.glob.glob(run.file("checkpoints/*")), "a checkpoint of unchanged weights was written")
    error = t.accord("run", t.path("rollout.yaml"), "--resume", expect=USAGE).error()
    require_parts(error, ["rollout_only", "model.checkpoint"], "the error")
    t.note("3 steps of version 0")


def case_train_only(t):
    """The trainer alone, on what the pools drew: the same weights, byte for byte."""
    run = recorded_run(t)
    alone = t.train("alone", {"debug.mode": "train_only", "debug.load_batches": run.file("batches")})
    require_equal(alone.ledger(), run.ledger(), "ledger")
    require_equal(train_lines(alone), train_lines(run), "metrics of training")
    require_equal(alone.weights(4), run.weights(4), "saved weights")
    require(not harness.glob.glob(alone.file("logs/rollout-*")), "a rollout worker was started")

    # One file for every step: the second step no longer draws with the weights that it trains.
    same = t.train("same", {"run.steps": 2, "debug.mode": "train_only", "debug.load_batches": batch(run, 1)})
    require_equal(same.ledger()[:2], run.ledger()[:2], "ledger of the first step")
    equal = [row["mismatch/equal_fraction"] for row in same.steps().values()]
    require(equal[0] == 1 and equal[1] < 1, f"equal_fraction on the same batch: {equal}")

    # Another advantage is computed from the recorded rewards.
    mean = t.train("mean", {"run.steps": 1, "algorithm": {"advantage": "mean"}, "debug.mode": "train_only",
                            "debug.load_batches": run.file("batches")})
    require(mean.ledger()[1] != run.ledger()[1], "algorithm.advantage made no difference")

    for changes, parts, code in (
            ({"run.steps": 5, "debug.load_batches": run.file("batches")}, ["step_000005"], harness.IO),
            ({"debug.load_batches": run.file("batches"), "rollout.samples_per_prompt": 8},
             ["samples_per_prompt is 8"], BAD_RECIPE),
            ({"debug.load_batches": run.file("batches"), "rollout.temperature": 0.5}, ["temperature"], BAD_RECIPE),
            ({}, ["needs debug.load_batches"], BAD_RECIPE)):
        name = "refused"
        error = t.accord("run", t.recipe(name, {"debug.mode": "train_only", **changes}), expect=code).error()
        require_parts(error, parts, "the error")
        require(not harness.os.path.exists(t.path(name)), f"a refused run wrote its directory: {error}")
    t.note(f"4 steps without rollout workers: the ledger of the run; on one batch twice equal_fraction {equal}")


def case_replay_of_a_run(t):
    """A step computed again from checkpoint and batches gives the run's numbers and bytes, or says which differ."""
    run = recorded_run(t, {"checkpoint.every": 3, "trainer.updates_per_step": 2, "algorithm": {"filter_zero_std": True}})
    for step, start in ((1, 0), (3, 0), (4, 3)):
        result = json.loads(t.accord("replay", run.path, "--step", str(step), "--json").out)
        require(result["equal"], f"step {step}: {result}")
        require_equal([s["step"] for s in result["steps"]], list(range(start, step + 1)), "steps")
        require(all(s["weights"] == len(run.ledger()[0]) for s in result["steps"]), "weights compared")
        names = result["steps"][-1]["values"]
        require({"train/loss", "train/grad_norm", "mismatch/equal_fraction", "train/updates"} <= set(names),
                f"values compared: {sorted(names)}")
    text = t.accord("replay", run.path, "--step", "4", "--set", "trainer.threads=2").out
    require_parts(text, ["train/loss", "equal", "step_3", f"{len(run.ledger()[0])} of {len(run.ledger()[0])} weights"],
                  "the table")

    # Another learning rate: the same loss, other weights.
    result = t.accord("replay", run.path, "--step", "1", "--set", "trainer.optimizer.lr=2e-3", "--json", expect=BAD_DATA)
    step = json.loads(result.out)["steps"][-1]
    different = [name for name, value in step["values"].items() if not value["equal"]]
    require("train/learning_rate" in different and "mismatch/equal_fraction" not in different, f"differ: {different}")
    require(len(step["different_weights"]) > 3, f"weights that differ: {step['different_weights']}")
    require_parts(result.error(), ["differs", "step 1"], "the error")

    # One bit of one recorded log-prob.
    path = batch(run, 4)
    content = harness.read(path, "rb")
    tensors = harness.read_safetensors(path)
    rows, width = tensors["old_logprobs"][1]
    first = values(tensors["trained"]).index(1) * width + values(tensors["prompt_len"])[0] - 1
    header = json.loads(content[8:8 + struct.unpack("<Q", content[:8])[0]])
    offset = 8 + struct.unpack("<Q", content[:8])[0] + header["old_logprobs"]["data_offsets"][0] + 4 * first
    harness.flip_byte(path, offset + 1)
    result = t.accord("replay", run.path, "--step", "4", "--json", expect=BAD_DATA)
    step = json.loads(result.out)["steps"][-1]
    require(not step["values"]["mismatch/equal_fraction"]["equal"], f"the changed log-prob went unnoticed: {step}")

    for arguments, parts, code in (
            (("--step", "9"), ["step_000005", "no such batch"], BAD_DATA),
            (("--step", "0"), ["--step"], USAGE),
            (("a", "b", "--step", "1"), ["neither"], USAGE)):
        require_parts(t.accord("replay", run.path, *arguments, expect=code).error(), parts, "the error")
    t.note(f"4 steps, {len(run.ledger()[0])} weights: equal; a learning rate and a log-prob that were changed show")


def case_verify_weights(t):
    """All arenas of a live run against its ledger; one changed byte is found, with worker and tensor."""
    sampling = {"run.steps": 10000, "debug.mode": "rollout_only", "rollout.max_response_tokens": 4}
    controller, run = t.start_run("sound", sampling)
    address = controller.address()
    check = json.loads(t.accord("verify-weights", address, "--json").out)
    tensors = len(run.ledger()[0])
    require_equal(check, {"version": 0, "workers": 3, "tensors": tensors, "differences": []}, "the check")
    t.accord("stop", address)
    controller.wait(expect=0)
    error = t.accord("verify-weights", address, expect=harness.UNAVAILABLE).error()
    require_parts(error, [address], "the error")

    controller, run = t.start_run("trained", {"run.steps": 10000, "checkpoint.every": 0})
    address = controller.address()
    t.wait_status(address, lambda s: s["step"] >= 1, "step 1")
    text = t.accord("verify-weights", address).out
    version = int(harness.re.match(r"version (\d+): ", text).group(1))
    require(version >= 1, text)
    t.accord("stop", address)
    controller.wait(expect=0)

    # The first bytes of the arena are the first tensor's.
    controller, run = t.start_run("flipped", {**sampling, "debug.corrupt_rollout": {"rank": 1, "version": 0, "byte": 14}})
    address = controller.address()
    result = t.accord("verify-weights", address, "--json", expect=BAD_DATA)
    first = run.ledger()[0][0]
    found = json.loads(result.out)["differences"]
    require_equal([(d["worker"], d["tensor"], d["ledger"]) for d in found], [("rollout/1", *first)], "differences")
    require(found[0]["held"] != found[0]["ledger"], "the digest of what is held")
    require_parts(result.error(), ["rollout/1", first[0]], "the error")
    require_parts("\n".join(t.status(address)["warnings"]), ["verify-weights", "rollout/1", first[0]], "warnings")
    t.accord("stop", address)
    controller.wait(expect=0)
    t.note(f"3 workers of {tensors} tensors, versions 0 and {version}; {result.error().strip()}")


def case_replay_of_a_batch(t):
    """The file of a step is also what `replay CKPT BATCH OUT` reads."""
    run = recorded_run(t, {"run.steps": 1, "rollout.device": "cpu"})  # where that command computes
    t.accord("replay", t.input("model"), batch(run, 1), t.path("out.safetensors"), "--recipe", t.path("recorded.yaml"))
    out = harness.read_safetensors(t.path("out.safetensors"))
    recorded = harness.read_safetensors(batch(run, 1))
    require_equal(values(out["logprobs"], bits=True), values(recorded["old_logprobs"], bits=True), "log-probs")
    row = run.steps()[1]
    for name in ("loss", "grad_norm"):
        single = struct.unpack("<f", struct.pack("<f", row["train/" + name]))
        require_equal(struct.unpack("<f", out[name][2]), single, name)
    error = t.accord("replay", t.input("model"), batch(run, 1), batch(run, 1), "--recipe", t.path("recorded.yaml"),
                     expect=USAGE).error()
    require_parts(error, ["replace the input"], "the error")
    refused = t.accord("replay", t.input("model"), batch(run, 1), t.path("none"), "--recipe", t.path("recorded.yaml"),
                       "--set", "rollout.device=cuda", expect=BAD_RECIPE).error()
    require_parts(refused, ["rollout.device is cuda", "on the CPU", "--set rollout.device=cpu", "replay RUN --step N"],
                  "the error")
    require(not os.path.exists(t.path("none")), "no output of a replay that was refused")
    t.note("log-probs, loss and gradient norm of a recorded batch are the run's")


if __name__ == "__main__":
    harness.main(globals())
