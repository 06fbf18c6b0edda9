#include <cassert>

#include "kernels/logprob/logprob.hpp"
#include "kernels/math/simd.hpp"
#include "kernels/router/router.hpp"

namespace accord::kernels {

void router_softmax(const float* logits, int64_t experts, float* probs) {
  const SoftmaxStats stats = softmax_stats(logits, experts, 1.0F);
  softmax_weights(logits, experts, 1.0F, stats, probs);
  for (int64_t e = 0; e < experts; ++e) {
    probs[e] = probs[e] / stats.sum;
  }
}

void router_top_k(const float* probs, int64_t experts, int64_t k, int32_t* ids) {
  assert(k <= experts);
  // Insertion into the list of the best so far. Ids ascend, so `<` keeps the lowest id among equals;
  // NaN never moves ahead of anything.
  const auto better = [&](float a, float b) { return a > b || (b != b && a == a); };
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const float p = probs[e];
    if (count == k && !better(p, probs[ids[k - 1]])) {
      continue;
    }
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && better(p, probs[ids[at - 1]]); --at) {
      ids[at] = ids[at - 1];
    }
    ids[at] = static_cast<int32_t>(e);
  }
}

void router_weights(const float* probs, const int32_t* ids, int64_t k, bool normalize, float* weights) {
  float sum = 0.0F;
  for (int64_t s = 0; s < k; ++s) {
    weights[s] = probs[ids[s]];
    sum += weights[s];
  }
  if (normalize) {
    for (int64_t s = 0; s < k; ++s) {
      weights[s] = weights[s] / sum;
    }
  }
}

}  // namespace accord::kernels
