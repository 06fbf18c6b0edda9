#include "base/model_config.hpp"

#include <cmath>
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

void add_latent_attention(const ModelConfig& c, int32_t layer, const std::string& prefix,
                          std::vector<ParamSpec>& out) {
  const MlaConfig& m = c.mla;
  const std::string attn = prefix + "self_attn.";
  const auto add = [&](const char* name, std::vector<int64_t> shape, ParamRole role) {
    out.push_back({attn + name + ".weight", std::move(shape), role, layer, -1});
  };
  if (m.q_lora_rank > 0) {
    add("q_a_proj", {m.q_lora_rank, c.hidden_size}, ParamRole::kQA);
    add("q_a_layernorm", {m.q_lora_rank}, ParamRole::kNorm);
    add("q_b_proj", {c.q_width(), m.q_lora_rank}, ParamRole::kQB);
  } else {
    add("q_proj", {c.q_width(), c.hidden_size}, ParamRole::kQ);
  }
  add("kv_a_proj_with_mqa", {m.kv_lora_rank + m.qk_rope_head_dim, c.hidden_size}, ParamRole::kKvA);
  add("kv_a_layernorm", {m.kv_lora_rank}, ParamRole::kNorm);
  add("kv_b_proj", {c.num_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank}, ParamRole::kKvB);
  add("o_proj", {c.hidden_size, c.attention_width()}, ParamRole::kO);
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
    if (c.has_mla()) {
      add_latent_attention(c, layer, prefix, specs);
    } else {
      add_attention(c, layer, prefix, specs);
    }
    specs.push_back(
        {prefix + "post_attention_layernorm.weight", {c.hidden_size}, ParamRole::kNorm, layer, -1});
    if (c.layer_is_moe[static_cast<size_t>(layer)]) {
      specs.push_back(
          {prefix + "mlp.gate.weight", {c.num_experts, c.hidden_size}, ParamRole::kRouter, layer, -1});
      if (c.router_bias) {
        specs.push_back({prefix + "mlp.gate.e_score_correction_bias",
                         {c.num_experts},
                         ParamRole::kRouterBias,
                         layer,
                         -1});
      }
      for (int32_t expert = 0; expert < c.num_experts; ++expert) {
        add_mlp(c, c.moe_intermediate_size, layer, expert,
                prefix + "mlp.experts." + std::to_string(expert) + ".", specs);
      }
      if (c.num_shared_experts > 0) {
        add_mlp(c, c.shared_width(), layer, -1, prefix + "mlp.shared_experts.", specs);
        for (auto spec = specs.end() - 3; spec != specs.end(); ++spec) {
          spec->shared = true;
        }
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

namespace {

Status validate_latent_attention(const ModelConfig& c) {
  const MlaConfig& m = c.mla;
  constexpr int64_t kVector = 8;
  for (const auto& [name, value] : {std::pair{"qk_nope_head_dim", m.qk_nope_head_dim},
                                    {"qk_rope_head_dim", m.qk_rope_head_dim},
                                    {"v_head_dim", m.v_head_dim}}) {
    if (value <= 0 || value % kVector != 0) {
      return data_error("config.json: {} is {}, must be a positive multiple of {}, which the kernels need",
                        name, value, kVector);
    }
  }
  constexpr int64_t kLatentMultiple = 16;  // the products over the latent are not padded
  if (m.kv_lora_rank % kLatentMultiple != 0 || m.q_lora_rank < 0) {
    return data_error("config.json: kv_lora_rank ({}) must be a multiple of {}, q_lora_rank ({}) positive",
                      m.kv_lora_rank, kLatentMultiple, m.q_lora_rank);
  }
  if (c.num_kv_heads != c.num_heads || c.head_dim != m.qk_rope_head_dim || c.qk_norm) {
    return data_error(
        "config.json: latent attention needs num_key_value_heads ({}) equal to num_attention_heads ({}) and "
        "head_dim ({}) equal to qk_rope_head_dim ({})",
        c.num_kv_heads, c.num_heads, c.head_dim, m.qk_rope_head_dim);
  }
  return absl::OkStatus();
}

Status validate_router(const ModelConfig& c) {
  const int64_t groups = c.num_expert_groups;
  if (groups < 1 || c.num_experts % groups != 0 || c.num_chosen_groups < 1 || c.num_chosen_groups > groups) {
    return data_error(
        "config.json: n_group ({}) must divide the {} experts, and topk_group ({}) be in 1..n_group", groups,
        c.num_experts, c.num_chosen_groups);
  }
  const int64_t in_group = c.num_experts / groups;
  if (groups > 1 && in_group < 2) {
    return data_error(
        "config.json: n_group {} leaves one expert per group; a group is scored by its two best experts",
        groups);
  }
  if (c.num_experts_per_token > c.num_chosen_groups * in_group) {
    return data_error(
        "config.json: num_experts_per_tok is {}, but topk_group ({}) groups hold only {} experts",
        c.num_experts_per_token, c.num_chosen_groups, c.num_chosen_groups * in_group);
  }
  if (!std::isfinite(c.routed_scaling_factor) || c.num_shared_experts < 0) {
    return data_error(
        "config.json: routed_scaling_factor ({}) must be finite, n_shared_experts ({}) not negative",
        c.routed_scaling_factor, c.num_shared_experts);
  }
  return absl::OkStatus();
}

double yarn_mscale(double factor, double mscale) {
  constexpr double kSlope = 0.1;
  return factor <= 1.0 ? 1.0 : kSlope * mscale * std::log(factor) + 1.0;
}

}  // namespace

KvWidths kv_widths(const ModelConfig& c) {
  if (!c.has_mla()) {
    return {c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim};
  }
  if (c.absorbed()) {
    return {c.mla.kv_lora_rank + c.mla.qk_rope_head_dim, 0};
  }
  return {c.num_heads * c.mla.qk_head_dim(), c.num_heads * c.mla.v_head_dim};
}

int64_t kv_row_bytes(const ModelConfig& c, int64_t element_bytes) {
  const KvWidths widths = kv_widths(c);
  return c.num_layers * (widths.k + widths.v) * element_bytes;
}

double rope_attention_factor(const RopeScaling& s) {
  if (s.kind != RopeKind::kYarn) {
    return 1.0;
  }
  if (s.attention_factor != 0.0) {
    return s.attention_factor;
  }
  return s.mscale != 0.0 && s.mscale_all_dim != 0.0
             ? yarn_mscale(s.factor, s.mscale) / yarn_mscale(s.factor, s.mscale_all_dim)
             : yarn_mscale(s.factor, 1.0);
}

double attention_scale(const ModelConfig& c) {
  const int64_t width = c.has_mla() ? c.mla.qk_head_dim() : c.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(width));
  if (!c.has_mla() || c.rope_scaling.kind == RopeKind::kDefault || c.rope_scaling.mscale_all_dim == 0.0) {
    return scale;
  }
  const double mscale = yarn_mscale(c.rope_scaling.factor, c.rope_scaling.mscale_all_dim);
  return scale * mscale * mscale;
}

const char* mla_form_name(MlaForm form) { return form == MlaForm::kPlain ? "plain" : "absorbed"; }

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
  if (c.has_mla()) {
    ACCORD_RETURN_IF_ERROR(validate_latent_attention(c));
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
    ACCORD_RETURN_IF_ERROR(validate_router(c));
  }
  if (!(c.rms_norm_eps > 0.0) || !(c.rope_theta > 0.0)) {
    return data_error("config.json: rms_norm_eps ({}) and rope_theta ({}) must be positive", c.rms_norm_eps,
                      c.rope_theta);
  }
  return absl::OkStatus();
}

}  // namespace accord
