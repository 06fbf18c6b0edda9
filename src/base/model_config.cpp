#include "base/model_config.hpp"

#include <utility>

namespace accord {
namespace {

constexpr int64_t kMaxExperts = 65536;  // recorded expert ids have at most two bytes

void add_attention(const ModelConfig& c, int32_t layer, const std::string& prefix,
                   std::vector<ParamSpec>& out) {
  const int64_t q_width = c.num_heads * c.head_dim;
  const int64_t kv_width = c.num_kv_heads * c.head_dim;
  const std::string attn = prefix + "self_attn.";
  out.push_back({attn + "q_proj.weight", {q_width, c.hidden_size}, ParamRole::kQ, layer, -1});
  out.push_back({attn + "k_proj.weight", {kv_width, c.hidden_size}, ParamRole::kK, layer, -1});
  out.push_back({attn + "v_proj.weight", {kv_width, c.hidden_size}, ParamRole::kV, layer, -1});
  out.push_back({attn + "o_proj.weight", {c.hidden_size, q_width}, ParamRole::kO, layer, -1});
  if (c.qk_norm) {
    out.push_back({attn + "q_norm.weight", {c.head_dim}, ParamRole::kNorm, layer, -1});
    out.push_back({attn + "k_norm.weight", {c.head_dim}, ParamRole::kNorm, layer, -1});
  }
}

void add_mlp(const ModelConfig& c, int64_t width, int32_t layer, int32_t expert, const std::string& prefix,
             std::vector<ParamSpec>& out) {
  out.push_back({prefix + "gate_proj.weight", {width, c.hidden_size}, ParamRole::kGate, layer, expert});
  out.push_back({prefix + "up_proj.weight", {width, c.hidden_size}, ParamRole::kUp, layer, expert});
  out.push_back({prefix + "down_proj.weight", {c.hidden_size, width}, ParamRole::kDown, layer, expert});
}

}  // namespace

std::vector<ParamSpec> parameter_specs(const ModelConfig& c) {
  std::vector<ParamSpec> specs;
  specs.push_back(
      {"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}, ParamRole::kEmbedding, -1, -1});
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    specs.push_back({prefix + "input_layernorm.weight", {c.hidden_size}, ParamRole::kNorm, layer, -1});
    add_attention(c, layer, prefix, specs);
    specs.push_back(
        {prefix + "post_attention_layernorm.weight", {c.hidden_size}, ParamRole::kNorm, layer, -1});
    if (c.layer_is_moe[static_cast<size_t>(layer)]) {
      specs.push_back(
          {prefix + "mlp.gate.weight", {c.num_experts, c.hidden_size}, ParamRole::kRouter, layer, -1});
      for (int32_t expert = 0; expert < c.num_experts; ++expert) {
        add_mlp(c, c.moe_intermediate_size, layer, expert,
                prefix + "mlp.experts." + std::to_string(expert) + ".", specs);
      }
    } else {
      add_mlp(c, c.intermediate_size, layer, -1, prefix + "mlp.", specs);
    }
  }
  specs.push_back({"model.norm.weight", {c.hidden_size}, ParamRole::kNorm, -1, -1});
  if (!c.tie_word_embeddings) {
    specs.push_back({"lm_head.weight", {c.vocab_size, c.hidden_size}, ParamRole::kLmHead, -1, -1});
  }
  return specs;
}

Status validate(const ModelConfig& c) {
  const std::pair<const char*, int64_t> positive[] = {{"vocab_size", c.vocab_size},
                                                      {"hidden_size", c.hidden_size},
                                                      {"num_hidden_layers", c.num_layers},
                                                      {"num_attention_heads", c.num_heads},
                                                      {"num_key_value_heads", c.num_kv_heads},
                                                      {"head_dim", c.head_dim},
                                                      {"max_position_embeddings", c.max_position_embeddings}};
  constexpr int64_t kMaxDim = int64_t{1} << 31;
  for (const auto& [name, value] : positive) {
    if (value <= 0 || value >= kMaxDim) {
      return data_error("config.json: {} is {}, must be positive and below 2^31", name, value);
    }
  }
  if (c.num_heads % c.num_kv_heads != 0) {
    return data_error("config.json: num_attention_heads ({}) is not a multiple of num_key_value_heads ({})",
                      c.num_heads, c.num_kv_heads);
  }
  if (c.head_dim % 8 != 0) {
    return data_error(
        "config.json: head_dim ({}) is not a multiple of 8, which rotary embedding and the kernels need",
        c.head_dim);
  }
  if (static_cast<int64_t>(c.layer_is_moe.size()) != c.num_layers) {
    return data_error("config.json: {} layer kinds for {} layers", c.layer_is_moe.size(), c.num_layers);
  }
  bool any_moe = false;
  bool any_dense = false;
  for (const bool moe : c.layer_is_moe) {
    (moe ? any_moe : any_dense) = true;
  }
  if (any_dense && c.intermediate_size <= 0) {
    return data_error("config.json: intermediate_size is {}, must be positive for dense layers",
                      c.intermediate_size);
  }
  if (any_moe) {
    if (c.num_experts <= 0 || c.moe_intermediate_size <= 0) {
      return data_error(
          "config.json: MoE layers need positive num_experts ({}) and moe_intermediate_size ({})",
          c.num_experts, c.moe_intermediate_size);
    }
    if (c.num_experts_per_token <= 0 || c.num_experts_per_token > c.num_experts) {
      return data_error("config.json: num_experts_per_tok is {}, must be in 1..{} (the experts)",
                        c.num_experts_per_token, c.num_experts);
    }
    if (c.num_experts > kMaxExperts) {
      return data_error("config.json: num_experts is {}, must be at most {}", c.num_experts, kMaxExperts);
    }
  }
  if (!(c.rms_norm_eps > 0.0) || !(c.rope_theta > 0.0)) {
    return data_error("config.json: rms_norm_eps ({}) and rope_theta ({}) must be positive", c.rms_norm_eps,
                      c.rope_theta);
  }
  return absl::OkStatus();
}

}  // namespace accord
