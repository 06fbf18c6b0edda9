#include "trainer/layer_params.hpp"

#include <string>

#include "base/status.hpp"

namespace accord::trainer {

namespace {

LayerParams layer_params(const ParameterTable& p, int64_t layer, int64_t num_experts) {
  const std::string base = fmt::format("model.layers.{}.", layer);
  const auto find = [&](const std::string& name) { return p.index(base + name + ".weight"); };
  LayerParams out{find("input_layernorm"),
                  find("self_attn.q_proj"),
                  find("self_attn.k_proj"),
                  find("self_attn.v_proj"),
                  find("self_attn.o_proj"),
                  find("self_attn.q_norm"),
                  find("self_attn.k_norm"),
                  find("post_attention_layernorm"),
                  find("mlp.gate"),
                  {},
                  {},
                  {}};
  out.mla = {find("self_attn.q_a_proj"),       find("self_attn.q_a_layernorm"),
             find("self_attn.q_b_proj"),       find("self_attn.kv_a_proj_with_mqa"),
             find("self_attn.kv_a_layernorm"), find("self_attn.kv_b_proj")};
  const auto mlp_of = [&](const std::string& prefix) {
    return MlpParams{find(prefix + "gate_proj"), find(prefix + "up_proj"), find(prefix + "down_proj")};
  };
  const auto add_mlp = [&](const std::string& prefix) { out.mlp.push_back(mlp_of(prefix)); };
  out.shared = mlp_of("mlp.shared_experts.");
  if (out.router < 0) {
    add_mlp("mlp.");
  } else {
    for (int64_t e = 0; e < num_experts; ++e) add_mlp(fmt::format("mlp.experts.{}.", e));
  }
  return out;
}

}  // namespace

ModelParams::ModelParams(const ModelConfig& config, const ParameterTable& table)
    : embedding(table.index("model.embed_tokens.weight")),
      final_norm(table.index("model.norm.weight")),
      lm_head(config.tie_word_embeddings ? embedding : table.index("lm_head.weight")) {
  for (int64_t l = 0; l < config.num_layers; ++l)
    layers.push_back(layer_params(table, l, config.num_experts));
}

}  // namespace accord::trainer
