#pragma once
// The choice of experts per token (Hugging Face's Qwen3MoE order of operations), all fp32:
//   probs   = softmax(logits) over all E experts            sums in sixteen-lane order
//   ids     = the K largest probabilities, best first; equal ones by the lowest expert id
//   weights = probs[ids], divided by their sum (ascending slot order) when `normalize`
// A NaN probability counts as smaller than every number, so the ids are always K different valid experts;
// the row's weights then are NaN and spoil that row only.
#include <cstdint>

namespace accord::kernels {

// probs [experts]; may be logits.
void router_softmax(const float* logits, int64_t experts, float* probs);

// ids [k], k <= experts.
void router_top_k(const float* probs, int64_t experts, int64_t k, int32_t* ids);

// weights [k] of the given experts: chosen live or replayed.
void router_weights(const float* probs, const int32_t* ids, int64_t k, bool normalize, float* weights);

}  // namespace accord::kernels
