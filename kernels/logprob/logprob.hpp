#pragma once
// Log-softmax of one logits row at a temperature, shared by the sampler and the trainer, so that both get
// the same bits for the same logits.
//
//   z_i       = logits_i / temperature                 (a true fp32 division)
//   max       = max z_i                                (NaN ignored here; it comes back through the sum)
//   sum       = sum exp(z_i - max)                     (sixteen-lane order of math/simd.hpp)
//   log p_i   = (z_i - max) - log(sum)
//   entropy   = log(sum) - (sum exp(z_i - max) (z_i - max)) / sum
//
// A NaN logit makes every result of its row NaN. `temperature` must be positive; a greedy sampler
// (temperature 0) reports log-probabilities at temperature 1.
#include <cstdint>

namespace accord::kernels {

struct SoftmaxStats {
  float max = 0.0F;
  float sum = 0.0F;
  float log_sum = 0.0F;
};

// One pass for the maximum, one for the sum. logits [vocab].
SoftmaxStats softmax_stats(const float* logits, int64_t vocab, float temperature);

// Log-probability of a logit of the row that `stats` belongs to.
float token_logprob(const SoftmaxStats& stats, float logit, float temperature);

// Both steps for one token id in [0, vocab).
float token_logprob(const float* logits, int64_t vocab, int32_t token, float temperature);

// Entropy of the row's distribution, in nats.
float softmax_entropy(const float* logits, int64_t vocab, float temperature, const SoftmaxStats& stats);

// out[i] = exp(z_i - max), the unnormalized probabilities (divide by stats.sum). out may be logits.
void softmax_weights(const float* logits, int64_t vocab, float temperature, const SoftmaxStats& stats,
                     float* out);

}  // namespace accord::kernels
