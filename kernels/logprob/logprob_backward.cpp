#include "kernels/logprob/logprob_backward.hpp"

#include "kernels/math/simd.hpp"

namespace accord::kernels {

void logprob_backward(float* logits_V, int64_t vocab, float temperature, const SoftmaxStats& stats,
                      int32_t token, float entropy, float dlogprob, float dentropy) {
  const F8 divisor = f8(temperature);
  const F8 max = f8(stats.max);
  const F8 log_sum = f8(stats.log_sum);
  const F8 base = f8(-dlogprob / temperature);
  const F8 slope = f8(-dentropy / temperature);
  const auto gradient = [&](F8 logits) {
    const F8 log_p = (logits / divisor - max) - log_sum;
    return exp8(log_p) * _mm256_fmadd_ps(slope, log_p + f8(entropy), base);
  };
  int64_t j = 0;
  for (; j + 8 <= vocab; j += 8) store8(logits_V + j, gradient(load8(logits_V + j)));
  if (j < vocab) store_tail(logits_V + j, gradient(load_tail(logits_V + j, vocab - j)), vocab - j);
  logits_V[token] += dlogprob / temperature;
}

}  // namespace accord::kernels
