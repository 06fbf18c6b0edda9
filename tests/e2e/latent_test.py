"""A small DeepSeek-V3 model (latent attention, grouped sigmoid routing, shared experts, yarn) trains with equal
bits in both pools, in either form of its attention."""
import json
import os

import harness
from harness import require, require_equal

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 320, "eos_token_id": 2,
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "hidden_act": "silu", "initializer_range": 0.1, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
    "rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 128, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
}
PLANS = {
    "mxfp8": {"configs": {"mxfp8": {"format": "mxfp8"}},
              "matchers": [{"name": "all", "pattern": "*", "config": "mxfp8"}]},
    "nvfp4": {"configs": {"nvfp4": {"format": "nvfp4"}, "mxfp8": {"format": "mxfp8"}},
              "matchers": [{"name": "experts", "pattern": "*.mlp.experts.*", "config": "nvfp4"},
                           {"name": "rest", "pattern": "*", "config": "mxfp8"}], "backward": "dequantized"},
}
# Lengths and batches that divide nothing.
ODD = {"run.steps": 2, "rollout.workers": 2, "rollout.max_batch_rows": 23, "rollout.prefill_chunk": 11,
       "trainer.tokens_per_microbatch": 101, "trainer.optimizer.lr": 1e-3,
       "algorithm.entropy_coefficient": 0.01}  # an untrained model earns no reward: the gradient is the entropy's


def make_model(t):
    config = harness.write(t.path("config.json"), json.dumps(CONFIG))
    tokenizer = os.path.join(harness.SOURCE, "configs/quickstart/tokenizer")
    t.accord("init-model", config, t.path("model"), "--seed", "3", "--tokenizer", tokenizer)
    return t.path("model")


def check(t, model, name, changes):
    run = t.train(name, {**ODD, "model.checkpoint": model, **changes})
    steps = run.steps()
    require_equal(sorted(steps), [1, 2], f"{name}: steps")
    for step, row in steps.items():
        require_equal(row["mismatch/equal_fraction"], 1, f"{name}, step {step}: equal_fraction")
        require_equal(row["mismatch/kl_k3"], 0, f"{name}, step {step}: kl_k3")
        require(row["train/grad_norm"] > 0, f"{name}, step {step}: grad_norm {row['train/grad_norm']}")
    ledger = run.ledger()
    moved = {a[0] for a, b in zip(ledger[0], ledger[-1]) if a != b}
    require_equal([n for n in moved if "e_score_correction_bias" in n], [], f"{name}: router biases that moved")
    require(any("kv_b_proj" in n for n in moved), f"{name}: no kv_b_proj moved")
    return run


def case_both_forms(t):
    model = make_model(t)
    for plan_name, plan in PLANS.items():
        ledgers = {}
        for form in ("plain", "absorbed"):
            run = check(t, model, f"{plan_name}-{form}", {"precision": plan, "model.mla": form})
            ledgers[form] = run.ledger()
            with open(os.path.join(run.path, "plan.json"), encoding="utf-8") as file:
                written = json.load(file)
            require_equal(written["mla"], form, "the plan's form")
            formats = {row["name"]: row["format"] for row in written["weights"]}
            require_equal(formats["model.layers.1.self_attn.kv_b_proj.weight"], "bf16", "kv_b_proj")
            require_equal(formats["model.layers.1.mlp.shared_experts.up_proj.weight"], "bf16", "shared experts")
            require_equal(formats["model.layers.1.mlp.gate.e_score_correction_bias"], "fp32", "router bias")
            require_equal(formats["model.layers.1.self_attn.q_b_proj.weight"], "mxfp8", "q_b_proj")
        require(ledgers["plain"] != ledgers["absorbed"], f"{plan_name}: both forms left the same ledger")
    t.note("plain and absorbed, MXFP8 and NVFP4: equal_fraction 1")


def case_default_form_resume_and_experts(t):
    model = make_model(t)
    changes = {"precision": PLANS["mxfp8"]}
    default = check(t, model, "default", changes)
    require_equal(check(t, model, "absorbed", {**changes, "model.mla": "absorbed"}).ledger(), default.ledger(),
                  "the default form")
    # The checkpoint that a run writes is a model again.
    check(t, default.checkpoint(2) + "/hf", "again", changes)
    check(t, model, "experts", {**changes, "trainer.workers": 2, "trainer.expert_parallel": 2})


def case_quantized_kv_b_is_refused_when_absorbed(t):
    model = make_model(t)
    plan = {"configs": {"mxfp8": {"format": "mxfp8"}},
            "matchers": [{"name": "kv", "pattern": "*.kv_b_proj.*", "config": "mxfp8"}]}
    changes = {**ODD, "model.checkpoint": model, "precision": plan}
    refused = t.accord("run", t.recipe("refused", {**changes, "model.mla": "absorbed"}), expect=78)
    require("kv_b_proj" in refused.err and "model.mla: plain" in refused.err, refused.err)
    check(t, model, "plain", {"precision": plan, "model.mla": "plain"})


if __name__ == "__main__":
    harness.main(globals())
