"""What the other commands make of a run: while it lives, and of what it leaves behind."""
import json
import os
import struct

import harness
from harness import UNAVAILABLE, USAGE, require, require_equal, require_parts


def finished_run(t):
    return t.train("run", {"run.steps": 3, "checkpoint.every": 0, "data.eval":
                           [{"name": "holdout", "path": t.input("data/holdout.jsonl"), "every": 1, "samples": 2,
                             "temperature": 0.0}]})


def case_generate_and_logprobs(t):
    run = finished_run(t)
    hf = run.checkpoint(3) + "/hf"
    arguments = ["generate", hf, "--prompt", "3 + 4 = ?", "--json", "--max-tokens", "12", "--temperature", "1",
                 "--recipe", run.file("recipe.yaml")]
    answer = json.loads(t.accord(*arguments, "--seed", "5").out)
    require(1 <= len(answer["ids"]) <= 12 and len(answer["ids"]) == len(answer["logprobs"]), f"lengths: {answer}")
    require(all(logprob <= 0 for logprob in answer["logprobs"]), f"log-probs: {answer['logprobs']}")
    again = json.loads(t.accord(*arguments, "--seed", "5", "--threads", "1").out)
    for key in ("ids", "logprobs", "text"):
        require_equal(again[key], answer[key], f"{key} of the same seed")
    others = {json.loads(t.accord(*arguments, "--seed", str(seed)).out)["text"] for seed in (6, 7, 8)}
    require(others - {answer["text"]}, "four seeds gave the same text")

    # `logprobs` computes the whole sequence at once, `generate` token by token: the same bits.
    harness.write(t.path("in.jsonl"), json.dumps({"messages": [{"role": "user", "content": "3 + 4 = ?"}]}) + "\n")
    tokens = json.loads(t.accord("tokenize", hf, t.path("in.jsonl"), "-").out)["ids"]
    require_equal(answer["prompt_tokens"], len(tokens), "prompt tokens")
    ids = tokens + answer["ids"]
    harness.write_safetensors_i32(t.path("ids.safetensors"), "input_ids", [1, len(ids)], ids)
    t.accord("logprobs", hf, t.path("ids.safetensors"), t.path("out.safetensors"), "--recipe",
             run.file("recipe.yaml"))
    out = harness.read_safetensors(t.path("out.safetensors"))
    require_equal(sorted(out), ["logits", "logprobs", "router.0.ids", "router.1.ids"], "tensors of logprobs")
    require_equal(out["logits"][:2], ("F32", [1, len(ids), 320]), "logits")
    require_equal(out["logprobs"][:2], ("F32", [1, len(ids) - 1]), "logprobs")
    values = struct.unpack(f"<{len(ids) - 1}f", out["logprobs"][2])[len(tokens) - 1:]
    generated = struct.unpack(f"<{len(answer['ids'])}f",
                              struct.pack(f"<{len(answer['ids'])}f", *answer["logprobs"]))
    require_equal(values, generated, "log-probs of logprobs and generate")
    plain = json.loads(t.accord(*arguments[:-2], "--seed", "5").out)
    require(plain["logprobs"] != answer["logprobs"], "the recipe's formats made no difference to the log-probs")
    t.note(f"generate says {answer['text']!r}; logprobs gives the bits of its {len(values)} log-probs")


def case_eval(t):
    run = finished_run(t)
    arguments = ["eval", run.checkpoint(3) + "/hf", "--data", t.input("data/holdout.jsonl"), "--reward",
                 "math_dapo", "--samples", "2", "--temperature", "0", "--max-tokens", "12", "--recipe",
                 run.file("recipe.yaml")]
    summary = json.loads(t.accord(*arguments, "--json", "--output", t.path("samples.jsonl")).out)
    last = run.metrics()[-1]
    require_equal(summary["prompts"], 8, "prompts")
    for name, key in (("pass1", "pass@1"), ("reward_mean", "reward_mean"),
                      ("response_length_mean", "response_length_mean"),
                      ("truncated_fraction", "truncated_fraction")):
        require_equal(summary[key], last["eval/holdout/" + name], f"{key}, greedy, of the command and of the run")
    require_equal(len(harness.read_jsonl(t.path("samples.jsonl"))), 16, "lines of --output")
    require_parts(t.accord(*arguments).out, ["pass@1", "response_length_mean"], "the table")
    t.note(f"greedy pass@1 {summary['pass@1']}, length {summary['response_length_mean']}: as the run measured")


def case_live_run(t):
    controller, run = t.start_run("live", {"run.steps": 40, "checkpoint.every": 0,
                                           "rollout.samples_per_prompt": 16,
                                           "trainer.tokens_per_microbatch": 1024})
    address = controller.address()
    watch = t.start("watch", address, "--json")
    status = t.wait_status(address, lambda s: s["step"] >= 1, "step 1")
    require_equal(status["run"], "live", "run")
    require_equal(status["directory"], t.path("live"), "directory")
    require_equal(status["steps"], 40, "steps")
    require_equal([w["name"] for w in sorted(status["workers"], key=lambda w: w["name"])],
                  ["rollout/0", "rollout/1", "trainer/0"], "workers")
    require(all(os.path.exists(f"/proc/{worker['pid']}") for worker in status["workers"]), "pids of the workers")
    require_equal(status["metrics"]["mismatch/equal_fraction"], 1, "a metric")
    require_parts(t.accord("--version").out, [status["build"]], "the build")
    t.wait_status(address, lambda s: any(" on " in wait["reason"] and wait["deadline_seconds"] > 0
                                         for wait in s["waits"]), "a named wait")
    text = t.accord("status", address).out
    require_parts(text, ["phase", "step", "of 40", "rollout/1", "rollout/reward_mean"], "the status")
    controller.wait(expect=0)
    watch.wait(expect=0)
    rows = [json.loads(line) for line in watch.log().splitlines()]
    require_equal(rows, run.metrics(), "what watch printed and metrics.jsonl")
    t.note(f"watch printed the {len(rows)} lines of metrics.jsonl")

    for command in ("status", "watch", "stop"):
        result = t.accord(command, address, expect=UNAVAILABLE)
        require_parts(result.error(), [address], f"the error of {command}")
        require_equal(result.err.count("\n"), 1, f"lines of the error of {command}")
        require(result.seconds < 15 * harness.TIME_FACTOR, f"{command} took {result.seconds:.1f} s to find nobody")
    t.note(f"nobody listening: {result.error().strip()}")


def case_plan_of_a_run(t):
    run = finished_run(t)
    plan = json.loads(t.accord("plan", t.path("run.yaml"), "--json").out)
    digest = harness.read_jsonl(run.file("ledger.jsonl"))[-1]["plan"]
    require(digest in json.dumps(plan), "the plan's digest in the ledger is not the dry run's")
    # The run directory's own recipe starts the same run.
    t.accord("run", run.file("recipe.yaml"), "--set", "run.dir=" + t.path("again"), "--set", "run.name=run")
    require_equal(harness.Run(t.path("again")).stable_lines(), run.stable_lines(), "metrics of the resolved recipe")


def case_devices(t):
    found = json.loads(t.accord("doctor", "--json").out)
    usable = [device["device"] for device in found["cuda_devices"] if device["usable"]]
    require(usable or found.get("cuda_unavailable") or found["cuda_devices"], f"no reason without devices: {found}")
    require_parts(t.accord("doctor", "--device", "cpu").out, ["driver"], "doctor")
    require_parts(t.accord("doctor", "--device", "gpu", expect=USAGE).error(), ["'gpu'", "cuda:N"], "an unknown device")
    values = t.path("x.safetensors")
    header = json.dumps({"x": {"dtype": "F32", "shape": [32, 64], "data_offsets": [0, 8192]}}).encode()
    numbers = struct.pack("<2048f", *((-1) ** i * i ** 3 / 1e4 for i in range(2048)))
    with open(values, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + numbers)
    for arguments in (("--format", "mxfp8"), ("--format", "mxfp8", "--axis", "col", "--element", "e5m2"),
                      ("--format", "nvfp4", "--scope", "row"), ("--format", "nvfp4", "--layout", "16x16")):
        t.accord("quantize", values, t.path("cpu"), *arguments)
        for device in usable or ["cuda:0"]:
            command = ["quantize", values, t.path("gpu"), *arguments, "--device", device]
            if usable:
                t.accord(*command)
                require_equal(harness.read(t.path("gpu"), "rb"), harness.read(t.path("cpu"), "rb"), f"bytes of {device}")
            else:
                require_parts(t.accord(*command, expect=UNAVAILABLE).error(), ["cuda:0: "], "no device")
                require(not os.path.exists(t.path("gpu")), "a refused quantize left a file")


def case_usage(t):
    t.accord("--help")
    for arguments in ((), ("no-such-command",), ("run",), ("status",), ("run", "x.yaml", "--no-such-flag")):
        require(t.accord(*arguments, expect=USAGE).err, f"{arguments}: no message")
    error = t.accord("worker", "--pool", "rollout", "--rank", "0", "--controller", "127.0.0.1:1",
                     "--register-timeout", "1", expect=UNAVAILABLE).error()
    require_parts(error, ["127.0.0.1:1"], "the error of a worker without controller")


def case_worker_devices(t):
    worker = ["worker", "--pool", "rollout", "--rank", "0", "--controller", "127.0.0.1:1", "--register-timeout", "1"]
    require_parts(t.accord(*worker, "--device", "gpu", expect=USAGE).error(), ["--device", "'gpu'", "cuda:N"], "a bad name")
    require_parts(t.accord(*worker, "--device", "cuda:99", expect=UNAVAILABLE).error(), ["--device", "cuda:99: "],
                  "a device that is not there")
    found = json.loads(t.accord("doctor", "--json").out)
    if any(device["usable"] for device in found["cuda_devices"]):
        t.note("a run on CUDA is not refused here: this machine has a device")
        return
    error = t.accord("run", t.recipe("cuda", {"trainer.device": "cuda"}), expect=UNAVAILABLE).error()
    require_parts(error, ["trainer.device is cuda: ", "use cpu"], "a run without its device")
    require(not os.path.exists(t.path("cuda")), "a refused run left a directory")


if __name__ == "__main__":
    harness.main(globals())
