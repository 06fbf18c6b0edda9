#pragma once
// The choice of experts per token (Hugging Face's Qwen3MoE order of operations), all fp32:
//   probs   = softmax(logits) over all E experts            sums in sixteen-lane order
//   ids     = the K largest probabilities, best first; equal ones by the lowest expert id
//   weights = probs[ids], divided by their sum (ascending slot order) when `normalize`
// A NaN probability counts as smaller than every number, so the ids are always K different valid experts;
// the row's weights then are NaN and spoil that row only.
//
// DeepSeek-V3 (arXiv 2412.19437, section 2.1.2; transformers' DeepseekV3TopkRouter), all fp32:
//   scores  = 1 / (1 + exp(-logits));   choice = scores + bias
//   groups of E/G neighbours, scored by the sum of their two best choices; the best groups are kept, equal
//   ones by the lowest number; ids = the K best choices in them
//   weights = scores[ids], divided by (their sum + 1e-20) when normalized, times a factor
#include <cstdint>

#include "base/model_config.hpp"
#include "kernels/router/router_rule.hpp"

namespace accord::kernels {

// probs [experts]; may be logits.
void router_softmax(const float* logits, int64_t experts, float* probs);

// ids [k], k <= experts.
void router_top_k(const float* probs, int64_t experts, int64_t k, int32_t* ids);

// weights [k] of the given experts: chosen live or replayed.
void router_weights(const float* probs, const int32_t* ids, int64_t k, bool normalize, float* weights);

RouterRule router_rule(const ModelConfig& config);

// scores [experts], softmax or sigmoid; may be logits.
void router_scores(const RouterRule& rule, const float* logits, float* scores);
// ids [k]; bias [experts] or null; scratch [experts + groups].
void router_choose(const RouterRule& rule, const float* scores, const float* bias, int32_t* ids,
                   float* scratch);
// weights [k] of the given experts: chosen live or replayed.
void router_weights(const RouterRule& rule, const float* scores, const int32_t* ids, float* weights);

}  // namespace accord::kernels
