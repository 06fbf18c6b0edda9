"""accord bench on the CPU, and on a device where there is one (the emulated build): text, JSON, refusals."""
import json
import math

import harness
from harness import UNAVAILABLE, USAGE, require, require_equal, require_parts


def device(t):
    found = json.loads(t.accord("doctor", "--json").out)
    names = [d["device"] for d in found["cuda_devices"] if d["usable"] and d["name"] == "emulated"]
    return names[0] if names else None


def parse(t, path):
    return json.loads(harness.read(t.path(path)))


def check_lines(tables, ops):
    lines = [line for table in tables for line in table["lines"]]
    require_equal({line["op"] for line in lines} - {"sum"}, ops, "kernels that were measured")
    for line in lines:
        require(line["seconds"] > 0 and math.isfinite(line["seconds"]), f"a time: {line}")
        if line["op"] != "sum":
            require(line["read_bytes"] + line["written_bytes"] > 0, f"bytes: {line}")
            require(line["share_of_ceiling"] > 0 and line["ceiling"], f"a share: {line}")


CPU_OPS = {"attention", "embedding", "formats", "linear", "logprob", "moe", "rmsnorm", "rope", "router", "sampler",
           "swiglu"}
DEVICE_OPS = {"adamw", "attention", "copy", "digest", "embedding", "formats", "gemm", "linear", "logprob", "moe",
              "rmsnorm", "rope", "router", "sampler", "swiglu"}


def case_kernels_on_the_cpu(t):
    out = t.accord("bench", "kernels", "--json", "all.json").out
    require_parts(out, ["| tiny MoE, 64 rows | BF16 | MXFP8 | NVFP4 |", "% of", "noisy"], "text")
    report = parse(t, "all.json")
    check_lines(report["tables"], CPU_OPS)
    require(report["ceilings"]["copy_bytes_per_second"] > 0, "a ceiling")
    one = json.loads(t.accord("bench", "kernels", "--op", "rmsnorm", "--shape", "tiny", "--json", "-").out)
    check_lines(one["tables"], {"rmsnorm"})


def case_rollout_on_the_cpu(t):
    out = t.accord("bench", "rollout", "--shape", "tiny", "--format", "bf16,mxfp8", "--batch", "1,2", "--context", "48",
                   "--steps", "4", "--json", "r.json").out
    require_parts(out, ["| mxfp8 | 2 |", "tokens/s"], "text")
    report = parse(t, "r.json")
    require_equal([(r["format"], r["batch"]) for r in report["results"]],
                  [("bf16", 1), ("bf16", 2), ("mxfp8", 1), ("mxfp8", 2)], "results")
    for r in report["results"]:
        require(r["tokens_per_second"] > 0 and 0 < r["share_of_roofline"], f"a rate: {r}")
        require(abs(r["tokens_per_second"] - r["batch"] * r["timed_steps"] / r["seconds"]) < 1e-6 * r["tokens_per_second"],
                f"tokens over seconds: {r}")


def case_device(t):
    name = device(t)
    if name is None:
        error = t.accord("bench", "kernels", "--device", "cuda:7", expect=UNAVAILABLE).error()
        require_parts(error, ["cuda:7"], "no such device")
        return
    t.accord("bench", "kernels", "--device", name, "--json", "k.json")
    report = parse(t, "k.json")
    check_lines(report["tables"], DEVICE_OPS)
    require_parts(report["note"], ["emulated"], "the note")
    t.accord("bench", "rollout", "--device", name, "--batch", "1,3", "--context", "96", "--steps", "8", "--json", "r.json")
    require_equal(len(parse(t, "r.json")["results"]), 6, "three formats, two batches")
    require(all(r["peak_memory_bytes"] > 0 for r in parse(t, "r.json")["results"]), "peak memory")
    out = t.accord("bench", "memory", "--device", name, "--rows", "64", "--inputs", "64", "--outputs", "256", "--json",
                   "m.json").out
    require_parts(out, ["| mxfp8 quantized |", "| nvfp4 dequantized |"], "text")
    for r in parse(t, "m.json")["results"]:
        phases = {phase: cell["peak_bytes"] for phase, cell in r["phases"].items()}
        require(phases["forward"] >= 64 * 256 * 2, f"the output is counted: {r}")
        require(phases["backward"] >= 64 * 64 * 2 + 64 * 256 * 2, f"both gradients are counted: {r}")
        require(phases["end_to_end"] >= phases["backward"], f"the whole: {r}")


def case_refusals(t):
    def refused(*arguments):
        return t.accord("bench", *arguments, expect=USAGE).error()
    require_parts(refused(), ["subcommand"], "nothing to do")
    require_parts(refused("kernels", "--op", "matmul"), ["'matmul'", "attention"], "an unknown kernel")
    require_parts(refused("kernels", "--shape", "gpt5"), ["'gpt5'", "qwen3-30b-a3b"], "an unknown shape")
    require_parts(refused("kernels", "--device", "gpu"), ["'gpu'"], "an unknown device")
    require_parts(refused("rollout", "--format", "int4"), ["'int4'", "nvfp4"], "an unknown format")
    require_parts(refused("rollout", "--batch", "0"), ["--batch"], "an empty batch")
    require_parts(refused("rollout", "--context", "8", "--steps", "8"), ["--context"], "a short context")
    require_parts(refused("memory"), ["--device cuda:N"], "the CPU's memory")


if __name__ == "__main__":
    harness.main(globals())
