#!/usr/bin/env python3
"""Checkpoints that others quantized, as sources of accord convert."""
import json
import math
import os
import shutil
import struct

import harness
from convert_test import GOLDEN, convert, relative_hashes, tensors_of, write_safetensors, write_sharded


def require_close(a, b):
    """BF16 tensors that are equal but for a few roundings: outer scales of other writers are not BF16 values."""
    harness.require_equal(list(a), list(b), "names")
    differing = total = 0
    for name, (_, _, data) in a.items():
        count = len(data) // 2
        left, right = struct.unpack(f"<{count}H", data), struct.unpack(f"<{count}H", b[name][2])
        apart = [abs(x - y) for x, y in zip(left, right) if x != y]
        harness.require(max(apart, default=0) <= 1, f"{name} is off by more than a rounding")
        differing, total = differing + len(apart), total + count
    harness.require(differing < total / 1000, f"{differing} of {total} values differ")


def case_foreign_layouts(t):
    """compressed-tensors' names and reciprocal, modelopt without a producer, DeepSeek's 128x128 blocks."""
    source = os.path.join(GOLDEN, "qwen3_moe")
    ours = convert(t, source, "ours", "--format", "nvfp4")
    tensors = harness.read_safetensors(ours + "/model.safetensors")
    config = json.loads(harness.read(ours + "/config.json"))

    def write_model(name, changed, quantization):
        harness.write(t.path(name) + "/config.json", json.dumps(dict(config, quantization_config=quantization)))
        write_safetensors(t.path(name) + "/model.safetensors", changed)
        return t.path(name)

    compressed = {}
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith("_scale_2"):
            scale = struct.unpack("<f", data)[0]
            compressed[name.replace("weight_scale_2", "weight_global_scale")] = (
                dtype, [1], struct.pack("<f", 1.0 / scale))
        elif name.endswith("input_scale"):
            compressed[name.replace("input_scale", "input_global_scale")] = (dtype, [1], data)
        else:
            compressed[name + "_packed" if name + "_scale" in tensors else name] = (dtype, shape, data)
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"},
             "targets": ["Linear"]}
    foreign = write_model("compressed", compressed, {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": group}, "ignore": ["lm_head", "re:.*self_attn.*"]})
    bf16 = tensors_of(convert(t, ours, "ours-bf16", "--format", "bf16"))
    require_close(bf16, tensors_of(convert(t, foreign, "foreign-bf16", "--format", "bf16")))
    modelopt = write_model("modelopt", tensors, {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    require_close(bf16, tensors_of(convert(t, modelopt, "modelopt-bf16", "--format", "bf16")))
    error = t.accord("convert", write_model("int4", tensors, {"quant_method": "gptq", "bits": 4}), t.path("x"),
                     "--format", "bf16", expect=harness.BAD_DATA).error()
    harness.require_parts(error, ["quantization_config", "gptq", "readable are"], "the refusal")
    missing = {name: value for name, value in tensors.items() if not name.endswith("experts.1.up_proj.weight_scale_2")}
    error = t.accord("convert", write_model("missing", missing, config["quantization_config"]), t.path("x"),
                     "--format", "bf16", expect=harness.BAD_DATA).error()
    harness.require_parts(error, ["up_proj.weight_scale_2' is missing"], "the refusal")

    # E4M3 0x38 is 1.0: with scales of powers of two the decoded values are known.
    plain = harness.read_safetensors(source + "/model.safetensors")
    blocks = {}
    for name, (dtype, shape, data) in plain.items():
        if ".mlp.experts." in name:
            n, k = shape
            blocks[name] = ("F8_E4M3", shape, bytes([0x38]) * (n * k))
            blocks[name + "_scale_inv"] = ("F32", [-(-n // 128), -(-k // 128)],
                                           struct.pack("<f", 0.25) * (-(-n // 128) * -(-k // 128)))
            plain[name] = (dtype, shape, b"\x80\x3e" * (n * k))
        else:
            blocks[name] = (dtype, shape, data)
    deepseek = write_model("deepseek", blocks, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                                "weight_block_size": [128, 128]})
    expected = t.path("expected")
    shutil.copytree(source, expected)
    write_safetensors(expected + "/model.safetensors", plain)
    t.accord("verify", expected, deepseek)
    for method in ("bf16", "mxfp8", "nvfp4"):
        out = convert(t, deepseek, "deepseek-" + method, "--format", method)
        t.accord("verify", expected, out)
        t.accord("verify", deepseek, out)
    t.accord("verify", t.path("deepseek-mxfp8"), deepseek)


def case_deepseek_as_published(t):
    """FP8 in blocks for every linear layer, kv_b_proj and shared experts included, a router bias in F32, and a
    layer for multi-token prediction, which is passed over."""
    source = os.path.join(GOLDEN, "deepseek_v3_mla")
    config = json.loads(harness.read(source + "/config.json"))
    published, expected = {}, {}
    for number, (name, (dtype, shape, data)) in enumerate(harness.read_safetensors(source + "/model.safetensors").items()):
        if name.endswith("e_score_correction_bias"):
            wide = b"".join(struct.pack("<f", 0.01 + 1e-5 * (number + i)) for i in range(shape[0]))
            published[name] = expected[name] = ("F32", shape, wide)
        elif "_proj" in name:
            codes = bytes(0x30 + (number + i) % 16 | (i % 3 == 0) << 7 for i in range(shape[0] * shape[1]))
            values = [math.ldexp(1 + code % 8 / 8, (code >> 3 & 15) - 9) * (-1 if code & 128 else 1) for code in codes]
            blocks = [-(-shape[0] // 128), -(-shape[1] // 128)]
            published[name] = ("F8_E4M3", shape, codes)
            published[name + "_scale_inv"] = ("F32", blocks, struct.pack("<f", 0.25) * (blocks[0] * blocks[1]))
            bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
            expected[name] = ("BF16", shape, struct.pack(f"<{len(values)}H", *(x >> 16 for x in bits)))
        else:
            published[name] = expected[name] = (dtype, shape, data)
    next_layer = f"model.layers.{config['num_hidden_layers']}."
    published[next_layer + "eh_proj.weight"] = ("F8_E4M3", [64, 128], bytes(64 * 128))
    published[next_layer + "eh_proj.weight_scale_inv"] = ("F32", [1, 1], bytes(4))
    quantization = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
    harness.write(t.path("fp8") + "/config.json", json.dumps(dict(config, quantization_config=quantization)))
    write_sharded(t.path("fp8"), published, lambda name: name.endswith("_scale_inv"))
    result = t.accord("convert", t.path("fp8"), t.path("bf16"), "--format", "bf16")
    harness.require_parts(result.err, ["2 tensors of multi-token prediction layers are left out"], "the warning")
    back = t.path("bf16")
    harness.require_equal(tensors_of(back), {name: expected[name] for name in tensors_of(back)}, "decoded values")
    harness.require_equal(set(tensors_of(back)), set(expected), "names")
    for method in ("mxfp8", "nvfp4"):
        low = convert(t, t.path("fp8"), method, "--format", method)
        for name, (dtype, _, _) in tensors_of(low).items():
            kept = ".kv_b_proj." in name or ".shared_experts." in name
            harness.require(not kept or dtype == "BF16", f"{name} is {dtype}")
        harness.require(not any(name.startswith(next_layer) for name in tensors_of(low)), "the layer is left")
        t.accord("verify", t.path("fp8"), low)
        t.accord("verify", back, low)
    again = convert(t, back, "again", "--format", "nvfp4")
    harness.require_equal(relative_hashes(again), relative_hashes(t.path("nvfp4")), "from FP8 and from its BF16")


if __name__ == "__main__":
    harness.main(globals())
