#pragma once
// What a decoder-only transformer looks like: the fields of a Hugging Face config.json that accord
// reads, after validation, and the list of its parameters under their canonical (Hugging Face) names.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace accord {

enum class Architecture : uint8_t { kLlama, kQwen3, kQwen3Moe };

// Rotary frequency scaling of Llama 3.1 and later ("rope_type": "llama3"); factor 1 means none.
struct RopeScaling {
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 0;
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::kQwen3Moe;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;  // dense MLP width
  int64_t num_experts = 0;        // 0: every MLP is dense
  int64_t num_experts_per_token = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;      // divide the chosen router weights by their sum
  std::vector<bool> layer_is_moe;  // [num_layers]
  bool qk_norm = false;            // RMSNorm on every q and k head (Qwen3)
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  int64_t max_position_embeddings = 0;
  double initializer_range = 0.02;
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;  // -1: none
  int32_t pad_token_id = -1;

  bool operator==(const ModelConfig&) const = default;
};

enum class ParamRole : uint8_t {
  kEmbedding,
  kLmHead,
  kNorm,
  kRouter,
  kQ,
  kK,
  kV,
  kO,  // attention projections
  kGate,
  kUp,
  kDown,  // MLP projections, dense or expert
};

// One parameter. Linear weights are [out_features, in_features] (the last axis is contracted).
struct ParamSpec {
  std::string name;  // canonical: model.layers.3.mlp.experts.7.gate_proj.weight
  std::vector<int64_t> shape;
  ParamRole role = ParamRole::kNorm;
  int32_t layer = -1;   // -1: not in a layer
  int32_t expert = -1;  // -1: not an expert's

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

// Every parameter in canonical order: embedding, then per layer (input norm, q, k, v, o, q/k norms,
// post-attention norm, router, experts in ascending order as gate, up, down; or dense gate, up, down),
// final norm, lm_head (absent when tied).
std::vector<ParamSpec> parameter_specs(const ModelConfig& config);

// Refuses sizes that no forward can run: zero or negative dims, heads not divisible by kv heads, odd
// head_dim, ...
Status validate(const ModelConfig& config);

}  // namespace accord
