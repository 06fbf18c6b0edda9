#!/usr/bin/env python3
"""accord convert and accord verify: layouts, resumption, refusals, and equality with the live export."""
import fnmatch
import glob
import itertools
import json
import math
import os
import shutil
import signal
import struct

import harness
import latent_test

GOLDEN = os.path.join(harness.SOURCE, "tests/data/hf")
MODELS = ("qwen3_moe", "qwen3_dense_tied", "llama_tied", "deepseek_v3_mla")
DTYPES = {"BF16": 2, "F8_E4M3": 1, "U8": 1, "F32": 4}
NVFP4 = {
    "configs": {"nvfp4": {"format": "nvfp4"}},
    "matchers": [{"name": "experts", "pattern": "*.mlp.experts.*", "config": "nvfp4"}],
    "backward": "high_precision",
}


def tensors_of(directory):
    """{name: (dtype, shape, bytes)} of all shards."""
    found = {}
    for path in sorted(glob.glob(directory + "/model*.safetensors")):
        found.update(harness.read_safetensors(path))
    return found


def relative_hashes(directory):
    return {os.path.relpath(path, directory): digest for path, digest in harness.hashes(directory).items()}


def write_safetensors(path, tensors):
    """{name: (dtype, shape, bytes)}"""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    harness.write(path, struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def write_sharded(directory, tensors, shard_of):
    """Tensors by the number that shard_of(name) gives, with an index."""
    shards = {}
    for name, tensor in tensors.items():
        shards.setdefault(shard_of(name), {})[name] = tensor
    weight_map = {}
    for number, part in shards.items():
        write_safetensors(f"{directory}/model-{number}.safetensors", part)
        weight_map.update({name: f"model-{number}.safetensors" for name in part})
    harness.write(directory + "/model.safetensors.index.json", json.dumps({"weight_map": weight_map}))


def convert(t, source, name, *options, **keywords):
    t.accord("convert", source, t.path(name), *options, **keywords)
    return t.path(name)


def case_golden_models_twice(t):
    formats = [("--format", "mxfp8"), ("--format", "nvfp4")]
    for model in MODELS:
        source = os.path.join(GOLDEN, model)
        partly = [("--format", "mxfp8", "--num-layers-at-end-in-bf16", "1")] if model == MODELS[0] else []
        for number, options in enumerate(formats + partly):
            first = convert(t, source, f"{model}-{number}-a", *options)
            second = convert(t, source, f"{model}-{number}-b", *options, "--threads", "1",
                             "--max-shard-bytes", "1000000000")
            harness.require_equal(relative_hashes(second), relative_hashes(first), f"{model} {options} twice")
            result = json.loads(t.accord("verify", source, first, "--json").out)
            harness.require(result["quantized"] > 0 and result["different"] == 0, f"{model}: {result}")
    t.accord("verify", first, source)
    harness.require_equal(json.loads(t.accord("verify", first, second, "--json").out)["quantized"], 0, model)


def check_layout(t, model, method, converted):
    tensors = tensors_of(converted)
    names = [name for name in tensors if name + ("_scale_inv" if method == "mxfp8" else "_scale_2") in tensors]
    harness.require(names, "no quantized weight")
    for name in names:
        dtype, shape, data = tensors[name]
        harness.require_equal(len(data), DTYPES[dtype] * math.prod(shape), name)
        if method == "mxfp8":
            harness.require_equal((dtype, tensors[name + "_scale_inv"][:2]),
                                  ("F8_E4M3", ("U8", [shape[0], shape[1] // 32])), name)
        else:
            module = name[:-len("weight")]
            harness.require_equal((dtype, tensors[name + "_scale"][:2], tensors[name + "_scale_2"][:2]),
                                  ("U8", ("F8_E4M3", [shape[0], shape[1] // 8]), ("F32", [])), name)
            harness.require_equal(struct.unpack("<f", tensors[module + "input_scale"][2]), (1.0,), name)
            if ".gate_proj." in name:  # one unit, one outer scale
                other = name.replace(".gate_proj.", ".up_proj.")
                harness.require_equal(tensors[other + "_scale_2"][2], tensors[name + "_scale_2"][2], name)
    return names, tensors


def excluded(module, patterns):
    """As vLLM reads modelopt's list: whole names, parts of names, and fnmatch patterns."""
    return any(fnmatch.fnmatch(module, p) or ("*" not in p and p in module) for p in patterns)


def case_layouts_and_configs(t):
    for model in MODELS:
        source = os.path.join(GOLDEN, model)
        for method in ("mxfp8", "nvfp4"):
            for extra in ((), ("--num-layers-at-end-in-bf16", "1"),
                          ("--extra-high-precision-layers-hf", "model.layers.0.mlp")):
                out = convert(t, source, f"{model}-{method}-{len(extra)}-{len(''.join(extra))}", "--format", method,
                              *extra)
                names, tensors = check_layout(t, model, method, out)
                config = json.loads(harness.read(out + "/config.json"))["quantization_config"]
                if method == "mxfp8":
                    ignored = config.pop("modules_to_not_convert")
                    harness.require_equal(
                        {k: v for k, v in config.items() if k != "producer"},
                        {"quant_method": "mxfp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                         "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, "config.json")
                else:
                    ignored = config["ignore"]
                    harness.require_equal((config["quant_method"], config["quant_algo"], config["group_size"]),
                                          ("modelopt", "NVFP4", 16), "config.json")
                    other = json.loads(harness.read(out + "/hf_quant_config.json"))["quantization"]
                    harness.require_equal((other["quant_algo"], other["group_size"], other["exclude_modules"],
                                           other["kv_cache_quant_algo"]), ("NVFP4", 16, ignored, None),
                                          "hf_quant_config.json")
                harness.require(len(ignored) <= 8 if method == "nvfp4" else len(ignored) < 24,
                                f"{model} {method}: the list is long: {ignored}")
                linears = {name[:-len(".weight")] for name, tensor in tensors.items()
                           if name.endswith(("_proj.weight", "_proj_with_mqa.weight", "mlp.gate.weight"))}
                for module in linears:
                    harness.require_equal(excluded(module, ignored), module + ".weight" not in names,
                                          f"{model} {method} {extra}: {module} against {ignored}")


def case_back_to_bf16(t):
    for model, method in itertools.product(("qwen3_moe", "deepseek_v3_mla"), ("mxfp8", "nvfp4")):
        source = os.path.join(GOLDEN, model)
        low = convert(t, source, f"{model}-{method}", "--format", method)
        back = convert(t, low, f"{model}-{method}-bf16", "--format", "bf16")
        for name, (dtype, _, data) in tensors_of(back).items():
            exact = name.endswith("e_score_correction_bias")
            harness.require_equal(dtype, "F32" if exact else "BF16", name)
            if exact:  # its values are kept through both conversions
                source_dtype, _, expected = tensors_of(source)[name]
                if source_dtype == "BF16":
                    expected = b"".join(b"\0\0" + expected[i:i + 2] for i in range(0, len(expected), 2))
                harness.require_equal(data, expected, name)
        harness.require("quantization_config" not in json.loads(harness.read(back + "/config.json")), "config.json")
        harness.require(not os.path.exists(back + "/hf_quant_config.json"), "hf_quant_config.json is left")
        result = json.loads(t.accord("verify", low, back, "--json").out)
        harness.require(result["different"] == 0 and result["decoded"] + result["quantized"] > 0, str(result))
        harness.require(t.accord("verify", source, back, expect=harness.BAD_DATA).out.count("different") == 1,
                        "the loss is not seen")


def case_a_wider_source(t):
    """A checkpoint in F32 is rounded to BF16 once, and verify knows it."""
    source = os.path.join(GOLDEN, "qwen3_moe")
    wide = t.path("wide")
    harness.write(wide + "/config.json", harness.read(source + "/config.json"))
    tensors = {}
    for name, (_, shape, data) in harness.read_safetensors(source + "/model.safetensors").items():
        codes = struct.unpack(f"<{len(data) // 2}H", data)
        # 0x7fff rounds down to the code and 0x8001 up to the next: neither is a BF16 value.
        bits = [code << 16 | (0x7fff if i % 2 else 0x8001) for i, code in enumerate(codes)]
        tensors[name] = ("F32", shape, struct.pack(f"<{len(bits)}I", *bits))
    write_safetensors(wide + "/model.safetensors", tensors)
    for method in ("bf16", "mxfp8", "nvfp4"):
        low = convert(t, wide, method, "--format", method)
        result = json.loads(t.accord("verify", wide, low, "--json").out)
        harness.require_equal((result["different"], result["equal"]), (0, 0), method)
        t.accord("verify", source, low, expect=harness.BAD_DATA)
    rounded = tensors_of(t.path("bf16"))
    for name, (_, _, data) in harness.read_safetensors(source + "/model.safetensors").items():
        codes = struct.unpack(f"<{len(data) // 2}H", data)
        expected = [code + (i % 2 == 0) for i, code in enumerate(codes)]
        harness.require_equal(rounded[name][2], struct.pack(f"<{len(expected)}H", *expected), name)


def case_units_across_shards(t):
    """gate_proj and up_proj in different source shards, and in different output shards."""
    source = os.path.join(GOLDEN, "qwen3_moe")
    whole = convert(t, source, "whole", "--format", "nvfp4")
    scattered = t.path("scattered")
    shutil.copytree(source, scattered)
    tensors = tensors_of(source)
    for name in ("model", "golden", "step"):
        os.remove(f"{scattered}/{name}.safetensors")
    numbers = {name: i for i, name in enumerate(tensors)}
    write_sharded(scattered, tensors, lambda name: 1 if ".gate_proj." in name else 2 if ".up_proj." in name else 3 + numbers[name] % 2)
    split = convert(t, scattered, "split", "--format", "nvfp4", "--max-shard-bytes", "3000")
    harness.require(len(glob.glob(split + "/*.safetensors")) > 20, "few shards")
    harness.require_equal(tensors_of(split), tensors_of(whole), "tensors of the two")
    t.accord("verify", whole, split)
    index = json.loads(harness.read(split + "/model.safetensors.index.json"))
    harness.require_equal(index["metadata"]["total_size"], sum(len(v[2]) for v in tensors_of(split).values()),
                          "total_size")


def interrupted(t, *arguments):
    """Kills a conversion to t.path("out") after a few shards; the shards that its state notes as finished."""
    process = t.start(*arguments)
    partial = t.path("out.partial")
    harness.wait_for(lambda: len(glob.glob(partial + "/*.safetensors")) >= 5 or not process.running(),
                     "a few shards")
    harness.require(process.running(), "it was too fast to be interrupted")
    process.popen.send_signal(signal.SIGKILL)
    process.popen.wait()
    harness.require(not os.path.exists(t.path("out")), "a half result appeared")
    return [f"{partial}/{name}" for name in json.loads(harness.read(partial + "/conversion.state"))["shards"]]


def case_resume(t):
    source = os.path.join(GOLDEN, "qwen3_moe")
    arguments = ["convert", source, t.path("out"), "--format", "nvfp4", "--max-shard-bytes", "2000", "--threads", "1"]
    whole = convert(t, source, "whole", *arguments[3:])
    partial = t.path("out.partial")
    finished = {path: os.stat(path).st_mtime_ns for path in interrupted(t, *arguments)}
    error = t.accord(*arguments[:4], "mxfp8", *arguments[5:], expect=harness.USAGE).error()
    harness.require_parts(error, ["another", "remove the directory"], "the refusal")
    result = json.loads(t.accord(*arguments, "--json").out)
    harness.require_equal(result["resumed_shards"], len(finished), "shards that were kept")
    harness.require(not os.path.exists(partial), "the partial directory is left")
    for path, time_ns in finished.items():
        harness.require_equal(os.stat(path.replace("out.partial", "out")).st_mtime_ns, time_ns, path)
    harness.require_equal(relative_hashes(t.path("out")), relative_hashes(whole), "files")
    harness.require_parts(t.accord(*arguments, expect=harness.USAGE).error(), ["exists"], "the refusal")
    t.note(f"{len(finished)} shards were kept")


def case_resume_trusts_no_name(t):
    """Other weights of the same size and time are refused; a damaged shard is made again."""
    source = t.path("source")
    shutil.copytree(os.path.join(GOLDEN, "qwen3_moe"), source)
    path = source + "/model.safetensors"
    original, stat = harness.read(path, "rb"), os.stat(path)
    arguments = ["convert", source, t.path("out"), "--format", "nvfp4", "--max-shard-bytes", "2000", "--threads", "1"]
    whole = convert(t, source, "whole", *arguments[3:])
    finished = interrupted(t, *arguments)
    tensors = harness.read_safetensors(path)
    name = "model.layers.1.mlp.experts.1.down_proj.weight"
    at = original.index(tensors[name][2])

    def replace(data):
        with open(path, "r+b") as file:
            file.write(data)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    replace(original[:at] + bytes([original[at] ^ 1]) + original[at + 1:])
    harness.require_equal((os.stat(path).st_size, os.stat(path).st_mtime_ns), (stat.st_size, stat.st_mtime_ns), "stat")
    error = t.accord(*arguments, expect=harness.USAGE).error()
    harness.require_parts(error, ["another source", "are not those", source, "remove the directory"], "the refusal")
    replace(original)
    with open(finished[0], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.truncate(finished[1], os.stat(finished[1]).st_size - 1)
    os.remove(finished[2])
    result = t.accord(*arguments, "--json")
    harness.require_equal(json.loads(result.out)["resumed_shards"], len(finished) - 3, "shards that were kept")
    for shard, part in zip(finished, ("is damaged", "is damaged", "is gone")):
        harness.require_parts(result.err, [f"{shard}: {part}", "made again"], "the warning")
    harness.require_equal(relative_hashes(t.path("out")), relative_hashes(whole), "files")


def case_refusals(t):
    source = os.path.join(GOLDEN, "qwen3_moe")
    def refused(code, parts, *options, src=source):
        error = t.accord("convert", src, t.path("out"), *options, expect=code).error()
        harness.require_parts(error, parts, str(options))
        harness.require(not glob.glob(t.path("out*")), f"{options} left something")
    usage = harness.USAGE
    refused(usage, ["--recipe or --format"])
    t.accord("convert", source, "", "--format", "mxfp8", expect=usage)
    refused(usage, ["--format"], "--format", "int4")
    refused(usage, ["not expected"], "--format", "mxfp8", "--extra-high-precision-layer-hf", "x")
    refused(usage, ["nothing.here", "matches no weight"], "--format", "mxfp8",
            "--extra-high-precision-layers-hf", "nothing.here")
    refused(usage, ["decoder.*", "matches no weight"], "--format", "mxfp8",
            "--extra-high-precision-layers-hf", "decoder.*")
    refused(usage, ["model.layers.0", "matches no weight", "decoder."], "--format", "mxfp8",
            "--extra-high-precision-layers-megatron", "model.layers.0")
    refused(usage, ["leave none"], "--format", "mxfp8", "--num-layers-at-start-in-bf16", "2",
            "--num-layers-at-end-in-bf16", "9")
    refused(usage, ["do not go with it"], "--format", "bf16", "--num-layers-at-end-in-bf16", "1")
    recipe = t.recipe("r", {"precision": dict(NVFP4, high_precision=["*.kv_b_proj.*"])})
    refused(harness.BAD_RECIPE, ["kv_b_proj", "matches no weight"], "--recipe", recipe)
    refused(usage, ["--recipe"], "--recipe", recipe, "--format", "mxfp8")
    both = t.recipe("both", {"precision": {
        "configs": {"a": {"format": "nvfp4"}, "b": {"format": "mxfp8"}},
        "matchers": [{"name": "x", "pattern": "*.mlp.experts.*", "config": "a"},
                     {"name": "y", "pattern": "*.self_attn.*", "config": "b"}]}})
    refused(harness.BAD_RECIPE, ["MXFP8 and NVFP4"], "--recipe", both)
    # A value that is not finite is named, and so is its place.
    bad = t.path("nan")
    shutil.copytree(source, bad)
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    tensors = harness.read_safetensors(source + "/model.safetensors")
    dtype, shape, data = tensors[name]
    at = 2 * (3 * shape[1] + 5)
    tensors[name] = (dtype, shape, data[:at] + b"\xc0\x7f" + data[at + 2:])
    write_safetensors(bad + "/model.safetensors", tensors)
    error = t.accord("convert", bad, t.path("out"), "--format", "nvfp4", expect=harness.BAD_DATA).error()
    harness.require_parts(error, [name, "row 3, column 5", "nan"], "the refusal")


def case_verify_finds_a_bit(t):
    source = os.path.join(GOLDEN, "qwen3_moe")
    out = convert(t, source, "out", "--format", "nvfp4")
    other = t.path("other")
    for suffix in ("weight", "weight_scale", "weight_scale_2"):
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(out, other)
        tensors = harness.read_safetensors(other + "/model.safetensors")
        name = f"model.layers.1.mlp.experts.1.down_proj.{suffix}"
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
        write_safetensors(other + "/model.safetensors", tensors)
        for a in (out, source):
            result = t.accord("verify", a, other, expect=harness.BAD_DATA)
            harness.require_parts(result.out, ["model.layers.1.mlp.experts.1.down_proj.weight"], suffix)
            harness.require_parts(result.err, ["differ in 1 of"], suffix)


def edit_json(path, change):
    content = json.loads(harness.read(path))
    change(content)
    harness.write(path, json.dumps(content))


def case_verify_sees_what_is_not_a_weight(t):
    source = t.path("source")
    shutil.copytree(os.path.join(GOLDEN, "qwen3_moe"), source)
    tokenizer = os.path.join(harness.SOURCE, "configs/quickstart/tokenizer")
    for name in os.listdir(tokenizer):
        shutil.copy(os.path.join(tokenizer, name), source)
    low = convert(t, source, "low", "--format", "nvfp4")
    for a in (source, low):
        harness.require_equal(json.loads(t.accord("verify", a, low, "--json").out)["others"], [], a)

    def differs(names, change, *against):
        other = t.path("other")
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(low, other)
        change(other)
        for a in against or (source, low):
            result = t.accord("verify", a, other, "--json", expect=harness.BAD_DATA)
            found = json.loads(result.out)
            harness.require_equal((found["ok"], found["different"]), (False, 0), str(names))
            harness.require_equal([other["name"] for other in found["others"]], names, a)
            harness.require_parts(result.err, ["differ in 0 of", names[0]], a)
            harness.require_parts(t.accord("verify", a, other, expect=harness.BAD_DATA).out, names, a)

    def config(**keys):
        return lambda d: edit_json(d + "/config.json", lambda c: c.update(keys))
    differs(["config.json: rms_norm_eps"], config(rms_norm_eps=0.01))
    differs(["config.json: num_experts_per_tok"], config(num_experts_per_tok=1))
    differs(["config.json: eos_token_id", "config.json: norm_topk_prob"], config(eos_token_id=3, norm_topk_prob=False))
    differs(["generation_config.json: eos_token_id"],
            lambda d: edit_json(d + "/generation_config.json", lambda c: c.update(eos_token_id=[1, 3])))
    differs(["tokenizer.json"], lambda d: os.remove(d + "/tokenizer.json"))
    differs(["tokenizer_config.json"],
            lambda d: harness.write(d + "/tokenizer_config.json", harness.read(d + "/tokenizer_config.json") + " "))
    same = t.path("same")
    shutil.copytree(low, same)
    edit_json(same + "/config.json", lambda c: c.update(transformers_version="9", dtype="float32", sliding_window=None))
    t.accord("verify", source, same)

    module = "model.layers.1.mlp.experts.1.down_proj"

    def input_scale(directory):
        tensors = harness.read_safetensors(directory + "/model.safetensors")
        tensors[module + ".input_scale"] = ("F32", [], struct.pack("<f", 0.5))
        write_safetensors(directory + "/model.safetensors", tensors)
    differs([module + ": input scale"], input_scale)
    # The same bytes under another producer: outer scales are read another way, so only the files' claims are compared.
    other = t.path("foreign")
    shutil.copytree(low, other)
    os.remove(other + "/hf_quant_config.json")
    edit_json(other + "/config.json", lambda c: c["quantization_config"].pop("producer"))
    found = json.loads(t.accord("verify", low, other, "--json", expect=harness.BAD_DATA).out)
    harness.require_equal([o["name"] for o in found["others"]], ["quantization_config: producer"], "producer")


def case_metadata_that_contradicts(t):
    """Lists of modules against the stored tensors, a claimed cache, and scales that no writer writes."""
    source = os.path.join(GOLDEN, "qwen3_moe")
    expert = "model.layers.0.mlp.experts.0.gate_proj"
    for method, key in (("nvfp4", "ignore"), ("mxfp8", "modules_to_not_convert")):
        low = convert(t, source, method, "--format", method)
        broken = t.path("broken")

        def refused(parts, change):
            shutil.rmtree(broken, ignore_errors=True)
            shutil.copytree(low, broken)
            change()
            for arguments in (("verify", source, broken), ("convert", broken, t.path("x"), "--format", "bf16")):
                harness.require_parts(t.accord(*arguments, expect=harness.BAD_DATA).err, parts, method)
                shutil.rmtree(t.path("x.partial"), ignore_errors=True)

        def edit(change, file="config.json"):
            return lambda: edit_json(f"{broken}/{file}", change)
        refused(["config.json", key, f"'{expert}'", f"in {method}"],
                edit(lambda c: c["quantization_config"][key].append(expert)))
        refused(["config.json", key, "does not list", "high precision"],
                edit(lambda c: c["quantization_config"].update({key: ["lm_head"]})))
        if method == "nvfp4":
            refused(["hf_quant_config.json", "'model.layers.0*'"],
                    edit(lambda c: c["quantization"]["exclude_modules"].append("model.layers.0*"),
                         "hf_quant_config.json"))
            refused(["KV cache", "accord"], edit(lambda c: c["quantization_config"].update(kv_cache_quant_algo="FP8")))

        def scale():
            tensors = harness.read_safetensors(broken + "/model.safetensors")
            name = expert + (".weight_scale" if method == "nvfp4" else ".weight_scale_inv")
            dtype, shape, data = tensors[name]
            at = 2 * shape[1] + 1
            tensors[name] = (dtype, shape, data[:at] + (b"\xb8" if method == "nvfp4" else b"\xff") + data[at + 1:])
            write_safetensors(broken + "/model.safetensors", tensors)
        refused([expert, "row 2, column 1", "negative (0xb8)" if method == "nvfp4" else "NaN"], scale)


def case_extreme_weights(t):
    """Tiny outer scales verify; weights whose quantized values overflow are refused by name."""
    source = os.path.join(GOLDEN, "qwen3_moe")
    tensors = harness.read_safetensors(source + "/model.safetensors")

    def model(name, value_of):
        shutil.copytree(source, t.path(name))
        changed = dict(tensors)
        for key, (dtype, shape, data) in tensors.items():
            if ".experts.0." in key:
                values = struct.unpack(f"<{len(data) // 2}H", data)
                changed[key] = (dtype, shape, b"".join(struct.pack("<f", value_of(i, struct.unpack(
                    "<f", struct.pack("<I", v << 16))[0]))[2:] for i, v in enumerate(values)))
        write_safetensors(t.path(name) + "/model.safetensors", changed)
        return t.path(name)
    for name, scale in (("tiny", 1e-35), ("smaller", 1e-37), ("least", 1e-39)):
        tiny = model(name, lambda _, v, s=scale: v * s)
        for method in ("nvfp4", "mxfp8"):
            low = convert(t, tiny, f"{name}-{method}", "--format", method)
            result = json.loads(t.accord("verify", tiny, low, "--json").out)
            harness.require(result["quantized"] > 0 and result["different"] == 0, f"{name} {method}: {result}")
            t.accord("verify", source, low, expect=harness.BAD_DATA)
    huge = model("huge", lambda i, v: 3.38e38 if i == 0 else v)
    for method in ("nvfp4", "mxfp8"):
        error = t.accord("convert", huge, t.path("x-" + method), "--format", method, expect=harness.BAD_DATA).error()
        harness.require_parts(error, ["experts.0.", "row 0, column 0", method.upper(), "too large"], "the refusal")
        harness.require(not os.path.exists(t.path("x-" + method)), "a result appeared")
    t.accord("convert", huge, t.path("bf16"), "--format", "bf16")


def case_quantized_kv_b(t):
    """A checkpoint for plain latent attention says what it needs to run."""
    source = os.path.join(GOLDEN, "deepseek_v3_mla")
    recipe = t.recipe("plain", {"model.mla": "plain", "precision": {
        "configs": {"mxfp8": {"format": "mxfp8"}},
        "matchers": [{"name": "all", "pattern": "*", "config": "mxfp8"},
                     {"name": "kv_b", "pattern": ".kv_b_proj.", "config": "mxfp8"}]}})
    low = convert(t, source, "low", "--recipe", recipe)
    ids = harness.write(t.path("ids.json"), "[1, 2, 3]")
    error = t.accord("generate", low, "--ids", ids, "--max-tokens", "2", expect=harness.BAD_RECIPE).error()
    harness.require_parts(error, ["kv_b_proj", "--recipe", "model.mla: plain"], "the refusal")
    t.accord("generate", low, "--ids", ids, "--max-tokens", "2", "--recipe", recipe)


def case_live_export(t):
    """Two steps, saved in BF16, converted: the bytes that were broadcast, whatever the trainer ranks."""
    for label, precision in (("mxfp8", harness.MXFP8), ("nvfp4", NVFP4)):
        converted = []
        for workers, places in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2)):
            name = f"{label}-{workers}-{places}"
            run = t.train(name, {"run.steps": 2, "precision": precision, "trainer.workers": workers,
                                 "trainer.expert_parallel": places,
                                 "rollout.prompts_per_step": 4, "rollout.samples_per_prompt": 2})
            out = convert(t, run.checkpoint(2) + "/hf", name + "-hf", "--recipe", t.path(name + ".yaml"))
            verified = json.loads(t.accord("verify", out, run.file("ledger.jsonl"), "--step", "2", "--json").out)
            harness.require_equal(verified["equal"], len(verified["tensors"]), name)
            t.accord("verify", run.checkpoint(2) + "/hf", out)
            t.accord("verify", out, run.file("ledger.jsonl"), "--step", "1", expect=harness.BAD_DATA)
            converted.append(out)
        t.note(f"{label}: {len(verified['tensors'])} digests equal in {len(converted)} topologies")


def case_live_export_of_latent_attention(t):
    """The same for a DeepSeek-V3 model, whose router bias is broadcast in fp32."""
    config = dict(latent_test.CONFIG, num_hidden_layers=2)
    tokenizer = os.path.join(harness.SOURCE, "configs/quickstart/tokenizer")
    t.accord("init-model", harness.write(t.path("config.json"), json.dumps(config)), t.path("model"),
             "--tokenizer", tokenizer)
    path = t.path("model") + "/model.safetensors"
    tensors = harness.read_safetensors(path)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    bias = struct.pack("<8f", *(1e-5 * (i + 1) + 0.01 for i in range(8)))  # not BF16 values
    tensors[name] = ("F32", [8], bias)
    write_safetensors(path, tensors)
    for label, precision in (("mxfp8", harness.MXFP8), ("nvfp4", NVFP4)):
        for workers, places in ((1, 1), (2, 2)):
            name_ = f"{label}-{workers}"
            run = t.train(name_, {"run.steps": 2, "model.checkpoint": t.path("model"), "precision": precision,
                                  "trainer.workers": workers, "trainer.expert_parallel": places,
                                  "algorithm.entropy_coefficient": 0.01,
                                  "rollout.prompts_per_step": 4, "rollout.samples_per_prompt": 2})
            out = convert(t, run.checkpoint(2) + "/hf", name_ + "-hf", "--recipe", t.path(name_ + ".yaml"))
            harness.require_equal(tensors_of(out)[name], ("F32", [8], bias), "the router's bias")
            verified = json.loads(t.accord("verify", out, run.file("ledger.jsonl"), "--json").out)
            harness.require_equal(verified["equal"], len(verified["tensors"]), name_)
            t.accord("verify", run.checkpoint(2) + "/hf", out)
    options = ("--prompt", "1 + 2 = ?", "--json", "--max-tokens", "4")
    alone = json.loads(t.accord("generate", out, *options).out)["ids"]
    recipe = t.recipe("as-trained", {"precision": NVFP4, "model.checkpoint": out})
    harness.require_equal(json.loads(t.accord("generate", out, *options, "--recipe", recipe).out)["ids"], alone,
                          "with and without the recipe")


def case_pools_load_it(t):
    """A converted checkpoint as model.checkpoint, without a recipe in generate, and against another plan."""
    source = t.input("model")
    for label, precision in (("mxfp8", harness.MXFP8), ("nvfp4", NVFP4)):
        low = convert(t, source, label, "--recipe", t.recipe(label, {"precision": precision}))
        run = t.train("run-" + label, {"run.steps": 2, "precision": precision, "model.checkpoint": low,
                                       "rollout.prompts_per_step": 4, "rollout.samples_per_prompt": 2})
        for step, metrics in run.steps().items():
            harness.require_equal(metrics["mismatch/equal_fraction"], 1, f"{label} step {step}")
        generated = [json.loads(t.accord("generate", low, "--prompt", "1 + 2 = ?", "--json", "--max-tokens", "8",
                                         *options).out)["ids"]
                     for options in ((), ("--recipe", t.path(label + ".yaml")))]
        harness.require_equal(generated[0], generated[1], "with and without the recipe")
        wrong = harness.MXFP8 if label == "nvfp4" else NVFP4
        error = t.accord("run", t.recipe("wrong-" + label, {"precision": wrong, "model.checkpoint": low}),
                         expect=harness.BAD_DATA).error()
        harness.require_parts(error, [low, "is stored in", "makes it", "precision"], "the refusal")
        harness.require(not os.path.exists(t.path("wrong-" + label)), "a run directory was made")


def case_another_reader(t):
    """The safetensors package lists the output, and numpy decodes it to our values."""
    try:
        import numpy  # pylint: disable=import-outside-toplevel
        from safetensors import safe_open  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        t.note(f"SKIPPED: {error}: python3 has no numpy or safetensors package")
        return
    import other_reader  # pylint: disable=import-outside-toplevel
    for model, method in itertools.product(("qwen3_moe", "deepseek_v3_mla"), ("mxfp8", "nvfp4")):
        source = os.path.join(GOLDEN, model)
        label = f"{model}-{method}"
        low = convert(t, source, label, "--format", method)
        with safe_open(low + "/model.safetensors", "numpy") as file:
            listed = set(file.keys())
        tensors = tensors_of(low)
        harness.require_equal(listed, set(tensors), "names that the package lists")
        back = tensors_of(convert(t, low, label + "-bf16", "--format", "bf16"))
        values = other_reader.decode(tensors)
        harness.require(len(values) == len(back), "not every weight is decoded")
        for name, value in values.items():
            ours = value if back[name][0] == "F32" else other_reader.to_bf16(value)
            harness.require(ours.tobytes() == back[name][2], f"{label}: {name} differs")
        # One weight in fp32: accord quantize gives the same bytes of a unit of one, and their decoded values.
        name = "model.layers.1.mlp.experts.1.down_proj.weight"
        plain = tensors_of(source)[name]
        write_safetensors(t.path("in.safetensors"), {"x": plain})
        t.accord("quantize", "in.safetensors", label + ".safetensors", "--format", method)
        ours = harness.read_safetensors(t.path(label + ".safetensors"))
        harness.require_equal(ours["x.data"][2], tensors[name][2], "bytes")
        harness.require(values[name].astype(numpy.float32).tobytes() == ours["x.dequant"][2], "decoded fp32 values")
        t.note(f"{label}: {len(listed)} tensors listed, {len(values)} weights decoded")


if __name__ == "__main__":
    harness.main(globals())
