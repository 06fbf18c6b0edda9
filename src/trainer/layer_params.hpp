#pragma once
// Which parameters a layer's backward adds to, by their index, and how its quantized linears are
// differentiated.
#include <cstdint>
#include <vector>

#include "base/model_config.hpp"
#include "recipe/recipe.hpp"
#include "trainer/parameter_table.hpp"

namespace accord::trainer {

// Indices into the ParameterTable; -1: the model has none.
struct MlpParams {
  int64_t gate, up, down;
};
struct MlaParams {
  int64_t q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b;
};
struct LayerParams {
  int64_t input_norm, q, k, v, o, q_norm, k_norm, post_norm, router;
  std::vector<MlpParams> mlp;  // one (dense) or one per expert
  MlaParams mla;
  MlpParams shared;
};

struct ModelParams {
  ModelParams(const ModelConfig& config, const ParameterTable& table);
  std::vector<LayerParams> layers;
  int64_t embedding, final_norm, lm_head;  // lm_head is the embedding when tied
};

// How quantized linears are differentiated.
struct BackwardOptions {
  recipe::BackwardMode mode = recipe::BackwardMode::kHighPrecision;
  std::vector<bool> e5m2_gradients;  // per parameter; empty: none

  bool e5m2(int64_t parameter) const {
    return !e5m2_gradients.empty() && e5m2_gradients[static_cast<size_t>(parameter)];
  }
};

}  // namespace accord::trainer
