#pragma once
// Backward of the token log-prob and the entropy of one row of logits (V entries, z = logits / temperature):
//   logprob = z[token] - lse;   entropy = -sum_j p_j log p_j,   log p = z - lse,   lse = stats.max +
//   stats.log_sum dlogits_j = ( dlogprob * (1[j = token] - p_j) - dentropy * p_j * (log p_j + entropy) ) /
//   temperature
#include <cstdint>

#include "kernels/logprob/logprob.hpp"

namespace accord::kernels {

// Replaces the row's logits by their gradient. `stats` and `entropy` are the forward's.
void logprob_backward(float* logits_V, int64_t vocab, float temperature, const SoftmaxStats& stats,
                      int32_t token, float entropy, float dlogprob, float dentropy);

}  // namespace accord::kernels
