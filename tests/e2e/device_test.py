"""The loop on CUDA devices, or on the emulated ones of that build: rollout and trainer agree bit for bit, runs
repeat, resume and replay; a changed byte in the device's memory shows. Skips where there is no device."""
import json
import re
import signal
import struct

import harness
from harness import BAD_RECIPE, USAGE, require, require_equal, require_parts

CUDA = {"rollout.device": "cuda", "trainer.device": "cuda"}
NVFP4 = {"configs": {"nvfp4": {"format": "nvfp4"}, "mxfp8": {"format": "mxfp8"}}, "backward": "dequantized",
         "matchers": [{"name": "experts", "pattern": "*.mlp.experts.*", "config": "nvfp4"},
                      {"name": "rest", "pattern": "*", "config": "mxfp8"}]}
BF16 = {"configs": {"bf16": {"format": "bf16"}},
        "matchers": [{"name": "all", "pattern": "*", "config": "bf16"}]}
NVFP4_ALL = {"configs": {"nvfp4": {"format": "nvfp4"}}, "backward": "dequantized",
             "matchers": [{"name": "all", "pattern": "*", "config": "nvfp4"}]}
# Batches that look different on both sides.
ODD = {"rollout.max_batch_rows": 23, "rollout.prefill_chunk": 11, "trainer.tokens_per_microbatch": 101}


def usable(t):
    found = json.loads(t.accord("doctor", "--json").out)
    names = [device["device"] for device in found["cuda_devices"] if device["usable"]]
    if not names:
        print("SKIPPED:", found.get("cuda_unavailable", "no device of this machine can be used"), flush=True)
    return names


def train(t, name, changes=None, arguments=()):
    return t.train(name, {**CUDA, "run.steps": 3, "checkpoint.every": 0, **(changes or {})}, arguments)


def check_equal(run, what, steps=3):
    rows = run.steps()
    require_equal(sorted(rows), list(range(1, steps + 1)), f"{what}: steps")
    for step, row in rows.items():
        require_equal(row["mismatch/equal_fraction"], 1, f"{what}, step {step}: equal_fraction")
        require_equal(row["mismatch/logprob_abs_diff_max"], 0, f"{what}, step {step}: largest difference")
    ledger = run.ledger()
    require(sum(a != b for a, b in zip(ledger, ledger[1:])) >= 1, f"{what}: no step changed the weights")
    log = harness.read(run.file("logs/controller.log"))
    require(log.count(" with 1 threads, arena of ") == log.count(": cuda:"), f"{what}: not all workers on CUDA:\n{log}")


def same_run(a, b, what):
    require_equal(a.ledger(), b.ledger(), f"{what}: ledgers")
    require_equal(a.stable_lines(), b.stable_lines(), f"{what}: metrics")


def case_equal_and_repeatable(t):
    if not usable(t):
        return
    for name, plan in (("mxfp8", harness.MXFP8), ("nvfp4", NVFP4)):
        runs = [train(t, f"{name}-{i}", {**ODD, "precision": plan}) for i in range(2)]
        check_equal(runs[0], name)
        same_run(*runs, f"{name}, twice")
    resolved = harness.read(runs[0].file("recipe.yaml"))
    require_equal(resolved.count("device: cuda"), 2, "devices in the run's recipe.yaml")


def graph_replays(run):
    logs = [harness.read(run.file(f"logs/rollout-{rank}.log")) for rank in range(2)]
    return sum(int(n) for log in logs for n in re.findall(r"(\d+) graph replays", log))


def case_graphs(t):
    """Decode steps that replay captured graphs, over several updates of the weights, change no byte."""
    if not usable(t):
        return
    changes = {**ODD, "precision": NVFP4, "algorithm.routing_replay": True}
    graphs = train(t, "graphs", changes)
    plain = train(t, "plain", {**changes, "rollout.cuda_graphs": False})
    check_equal(graphs, "graphs")
    same_run(graphs, plain, "with and without graphs")
    require(graph_replays(graphs) > 10, f"only {graph_replays(graphs)} graph replays")
    require_equal(graph_replays(plain), 0, "graph replays without graphs")
    t.note(f"{graph_replays(graphs)} graph replays")


def case_any_number_of_workers(t):
    """Rollout workers share devices and change no bit; trainers share them and agree on all bytes."""
    if not usable(t):
        return
    one = train(t, "one", {"rollout.workers": 1, "run.steps": 2})
    three = train(t, "three", {"rollout.workers": 3, "run.steps": 2})
    same_run(one, three, "1 and 3 rollout workers")
    ranks = [train(t, f"ranks-{i}", {"trainer.workers": 2, "run.steps": 2}) for i in range(2)]
    check_equal(ranks[0], "2 trainers", steps=2)
    same_run(*ranks, "2 trainers, twice")


def case_connected_devices(t):
    """Weights, gradients and BF16 originals that go straight between devices change no byte."""
    if not usable(t):
        return
    if json.loads(t.accord("doctor", "--json").out)["cuda_devices"][0]["name"] != "emulated":
        t.note("only emulated devices can be as many as this needs, and be apart")
        return
    changes = {"trainer.workers": 2, "rollout.workers": 2, "run.steps": 2,
               "precision": {**harness.MXFP8, "backward": "high_precision"}}
    with harness.environment(ACCORD_NCCL="off"):
        apart = train(t, "apart", changes)
    with harness.environment(ACCORD_EMULATED_DEVICES="4", ACCORD_NCCL="emulated"):
        connected = train(t, "connected", changes)
    check_equal(connected, "connected devices", steps=2)
    same_run(apart, connected, "through hosts and between devices")
    for run, words in ((apart, "device memory goes through the hosts"), (connected, "device memory goes over")):
        for worker in ("trainer-0", "trainer-1", "rollout-0", "rollout-1"):
            require_parts(harness.read(run.file(f"logs/{worker}.log")), [f"group 'weights': {words}"], worker)


def emulated(t):
    if not usable(t):
        return False
    if json.loads(t.accord("doctor", "--json").out)["cuda_devices"][0]["name"] == "emulated":
        return True
    t.note("only emulated devices have the compute capability that this needs")
    return False


def case_block_scaled(t):
    """Devices of capability 10: products of quantized weights by cuBLASLt, the same in rollout and trainer; another
    arithmetic than without it, which the controller tells apart."""
    if not emulated(t):
        return
    with harness.environment(ACCORD_EMULATED_CAPABILITY="10.0"):
        for name, plan in (("mxfp8", harness.MXFP8), ("nvfp4", NVFP4), ("nvfp4-all", NVFP4_ALL)):
            runs = [train(t, f"{name}-{i}", {**ODD, "precision": plan}) for i in range(2)]
            check_equal(runs[0], name)
            same_run(*runs, f"{name}, twice")
            for worker in ("trainer-0", "rollout-0", "rollout-1"):
                require_parts(harness.read(runs[0].file(f"logs/{worker}.log")),
                              ["products of quantized weights by cuBLASLt"], worker)
        with harness.environment(ACCORD_CUBLASLT="off"):
            decoded = train(t, "decoded", {**ODD, "precision": NVFP4_ALL})
        check_equal(decoded, "decoded operands")
        require("cuBLASLt" not in harness.read(decoded.file("logs/rollout-0.log")), "cuBLASLt was used though it is off")
    hopper = train(t, "hopper", {**ODD, "precision": NVFP4_ALL})
    same_run(decoded, hopper, "decoded operands on both capabilities")


def case_block_scaled_refusals(t):
    """No cuBLASLt, and workers of different arithmetic."""
    if not emulated(t):
        return
    changes = {**CUDA, "run.steps": 1, "rollout.workers": 1, "rollout.device": "auto", "trainer.device": "auto"}
    with harness.environment(ACCORD_EMULATED_CAPABILITY="10.0"):
        with harness.environment(ACCORD_CUBLASLT="/nowhere/libcublasLt.so.13"):
            failed = t.accord("run", t.recipe("missing", {**CUDA, "run.steps": 1}), expect=harness.UNAVAILABLE)
        require_parts(failed.err, ["capability 10.0", "/nowhere/libcublasLt.so.13", "install libcublas",
                                   "ACCORD_CUBLASLT=off"], "without cuBLASLt")
        controller = t.start("controller", t.recipe("mixed", changes))
        address = controller.address()
        for pool, setting in (("trainer", "off"), ("rollout", None)):
            with harness.environment(**({"ACCORD_CUBLASLT": setting} if setting else {})):
                t.start("worker", "--pool", pool, "--rank", "0", "--controller", address, "--device", "cuda:0")
        controller.wait(BAD_RECIPE)
        require_parts(controller.log(), ["trainer/0", "rollout/0", "(emulated sm_100)", "emulated sm_100, cuBLASLt 130100",
                                         "ACCORD_CUBLASLT"], "the controller's error")


def case_reference(t):
    """A BF16 policy that still is its reference has the reference's log-probs, bit for bit."""
    if not usable(t):
        return
    run = train(t, "reference", {"precision": BF16, "algorithm.reference_kl": True, "run.steps": 2})
    check_equal(run, "bf16", steps=2)
    require_equal(run.steps()[1]["train/ref_kl"], 0, "KL to the reference before the first update")
    require(run.steps()[2]["train/ref_kl"] != 0, "the second step is still the reference")


def case_backward_modes_with_preemptions(t):
    """Long samples in a small cache, so that some are thrown out and computed again, in odd batches."""
    if not usable(t):
        return
    # An untrained policy does not end its answers, and has no reward to learn from.
    small = {**ODD, "model.checkpoint": t.input("untrained"), "rollout.max_prompt_tokens": 24,
             "rollout.max_response_tokens": 40, "rollout.kv_cache_tokens": 80, "rollout.prompts_per_step": 4,
             "algorithm.entropy_coefficient": 0.01}
    for name, plan in (("high_precision", harness.MXFP8), ("dequantized", harness.MXFP8), ("quantized", harness.MXFP8),
                       ("nvfp4-dequantized", NVFP4), ("nvfp4-high_precision", NVFP4)):
        run = train(t, name, {**small, "precision": {**plan, "backward": name.split("-")[-1]}})
        check_equal(run, name)
        logs = [harness.read(run.file(f"logs/rollout-{rank}.log")) for rank in range(2)]
        preemptions = [int(n) for log in logs for n in re.findall(r"(\d+) preemptions", log)]
        require(sum(preemptions) > 0, f"{name}: no sample was preempted")
        t.note(f"{name}: equal_fraction 1 with {sum(preemptions)} preemptions")


def case_routing_replay(t):
    if not usable(t):
        return
    run = train(t, "replay", {"algorithm.routing_replay": True, "run.steps": 2})
    check_equal(run, "routing replay", steps=2)
    require_equal(run.steps()[2]["mismatch/expert_overlap"], 1, "expert overlap")


def case_changed_byte(t):
    """One bit of the device's memory, which no digest of the update saw: a code of the first q_proj, after the
    embedding and a norm, each on a boundary of 256 bytes."""
    if not usable(t):
        return
    config = json.loads(harness.read(t.input("model/config.json")))
    sizes = (config["vocab_size"] * config["hidden_size"] * 2, config["hidden_size"] * 2)
    byte = sum(-(-size // 256) * 256 for size in sizes) + 5
    run = train(t, "corrupt", {"debug.corrupt_rollout": {"rank": 1, "version": 1, "byte": byte}})
    equal = {step: row["mismatch/equal_fraction"] for step, row in run.steps().items()}
    require_equal((equal[1], equal[3]), (1, 1), "equal_fraction before and after the change")
    require(0.3 < equal[2] < 1, f"the changed byte of one of two workers: equal_fraction by step {equal}")


def case_verify_weights(t):
    if not usable(t):
        return
    process, _ = t.start_run("verify", {**CUDA, "run.steps": 400, "checkpoint.every": 0})
    address = process.address()
    t.wait_status(address, lambda status: status["step"] >= 1, "step 1")
    answer = json.loads(t.accord("verify-weights", address, "--json").out)
    require_equal(answer.get("differences", []), [], "weights on the devices")
    process.popen.send_signal(signal.SIGTERM)
    process.wait(harness.DRAINED)


def case_resume_and_replay(t):
    if not usable(t):
        return
    changes = {"run.steps": 4, "checkpoint.every": 2, "debug.dump_batches": True}
    whole = train(t, "whole", changes)
    t.accord("run", t.recipe("parts", {**CUDA, **changes, "run.name": "whole"}), "--steps", "2")
    t.accord("run", t.path("parts.yaml"), "--resume")
    parts = harness.Run(t.path("parts"))
    require_equal(parts.ledger(), whole.ledger(), "ledgers of a resumed run")
    require_equal(parts.weights(4), whole.weights(4), "weights of a resumed run")
    replayed = t.accord("replay", whole.path, "--step", "4")
    t.note(replayed.out.strip().splitlines()[-1])


def case_generate_eval_and_logprobs(t):
    """A device draws what it gave as log-probabilities of whole sequences, to the bit; near the CPU's."""
    names = usable(t)
    if not names:
        return
    run = train(t, "drawn")
    hf = run.checkpoint(3) + "/hf"
    of_run = ["--recipe", run.file("recipe.yaml")]
    ids = [7, 12, 33, 5, 18]
    harness.write(t.path("ids.json"), json.dumps(ids))
    sampled = ["generate", hf, "--ids", t.path("ids.json"), "--json", "--max-tokens", "40", "--temperature", "1",
               "--seed", "5", *of_run]
    drawn = json.loads(t.accord(*sampled, "--device", names[0]).out)
    whole = ids + drawn["ids"]
    harness.write_safetensors_i32(t.path("ids.safetensors"), "input_ids", [1, len(whole)], whole)
    logprobs = {}
    for device in (names[0], "cpu"):
        t.accord("logprobs", hf, t.path("ids.safetensors"), t.path("out.safetensors"), "--device", device, *of_run)
        out = harness.read_safetensors(t.path("out.safetensors"))
        require_equal(sorted(out), ["logits", "logprobs", "router.0.ids", "router.1.ids"], f"tensors of {device}")
        logprobs[device] = struct.unpack(f"<{len(whole) - 1}f", out["logprobs"][2])[len(ids) - 1:]
    count = len(drawn["ids"])
    generated = struct.unpack(f"<{count}f", struct.pack(f"<{count}f", *drawn["logprobs"]))
    require_equal(logprobs[names[0]], generated, "log-probs of logprobs and generate")
    difference = max(abs(a - b) for a, b in zip(logprobs["cpu"], generated))
    require(difference < 0.5, f"log-probs of the CPU and of the device differ by {difference}")
    score = [json.loads(t.accord("eval", hf, "--data", t.input("data/holdout.jsonl"), "--reward", "math_dapo", "--max-tokens", "12",
                                 "--temperature", "0", "--json", "--device", names[0], *of_run).out)
             for _ in range(2)]
    require_equal(score[0], score[1], "eval, twice")
    require_equal(score[0]["prompts"], 8, "prompts of eval")
    error = t.accord(*sampled, "--dtype", "float32", "--device", names[0], expect=USAGE).error()
    require_parts(error, ["float32", "bfloat16", "--dtype"], "the error of a dtype that devices do not have")


def case_mixed_pools(t):
    """A trainer on the CPU and rollout workers on a device: refused by the controller, both named."""
    names = usable(t)
    if not names:
        return
    controller = t.start("controller", t.recipe("mixed", {"rollout.workers": 1, "rollout.device": "auto"}))
    address = controller.address()
    for pool, device in (("trainer", "cpu"), ("rollout", names[0])):
        t.start("worker", "--pool", pool, "--rank", "0", "--controller", address, "--device", device)
    controller.wait(BAD_RECIPE)
    require_parts(controller.log(), ["trainer/0", "rollout/0", names[0], "--device"], "the controller's error")


if __name__ == "__main__":
    harness.main(globals())
