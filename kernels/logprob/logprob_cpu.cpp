#include <cassert>
#include <limits>

#include "kernels/formats/ieee_mode.hpp"
#include "kernels/logprob/logprob.hpp"
#include "kernels/math/math.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {
namespace {

// Calls body(lane_half, z) over the row in eights; the tail's missing lanes hold `fill`.
template <class Body>
void for_each_eight(const float* logits, int64_t vocab, float temperature, float fill, Body body) {
  const F8 t = f8(temperature);
  int64_t i = 0;
  for (; i + 8 <= vocab; i += 8) {
    body((i >> 3) & 1, _mm256_div_ps(load8(logits + i), t));
  }
  if (i < vocab) {
    alignas(32) float z[8];
    for (int64_t j = 0; j < 8; ++j) {
      z[j] = i + j < vocab ? logits[i + j] / temperature : fill;
    }
    body((i >> 3) & 1, _mm256_load_ps(z));
  }
}

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

SoftmaxStats softmax_stats(const float* logits, int64_t vocab, float temperature) {
  assert(vocab > 0 && temperature > 0.0F);
  const formats::IeeeMode ieee;
  SoftmaxStats stats;
  F8 running = f8(kMinusInfinity);
  for_each_eight(logits, vocab, temperature, kMinusInfinity,
                 [&](int64_t, F8 z) { running = max_ignoring_nan(running, z); });
  stats.max = reduce_max8(running);
  const F8 max = f8(stats.max);
  F8 lanes[2] = {f8_zero(), f8_zero()};
  for_each_eight(logits, vocab, temperature, kMinusInfinity, [&](int64_t half, F8 z) {
    lanes[half] = _mm256_add_ps(lanes[half], exp8(_mm256_sub_ps(z, max)));
  });
  stats.sum = reduce8(_mm256_add_ps(lanes[0], lanes[1]));
  stats.log_sum = log_f32(stats.sum);
  return stats;
}

float token_logprob(const SoftmaxStats& stats, float logit, float temperature) {
  return (logit / temperature - stats.max) - stats.log_sum;
}

float token_logprob(const float* logits, int64_t vocab, int32_t token, float temperature) {
  assert(token >= 0 && token < vocab);
  return token_logprob(softmax_stats(logits, vocab, temperature), logits[token], temperature);
}

float softmax_entropy(const float* logits, int64_t vocab, float temperature, const SoftmaxStats& stats) {
  const formats::IeeeMode ieee;
  const F8 max = f8(stats.max);
  F8 lanes[2] = {f8_zero(), f8_zero()};
  for_each_eight(logits, vocab, temperature, kMinusInfinity, [&](int64_t half, F8 z) {
    const F8 d = _mm256_sub_ps(z, max);
    const F8 p = exp8(d);
    // p = 0 adds nothing, also where d is -inf; a NaN is not equal to 0 and stays.
    const F8 keep = _mm256_cmp_ps(p, f8_zero(), _CMP_NEQ_UQ);
    lanes[half] = _mm256_add_ps(lanes[half], _mm256_and_ps(keep, _mm256_mul_ps(p, d)));
  });
  return stats.log_sum - reduce8(_mm256_add_ps(lanes[0], lanes[1])) / stats.sum;
}

void softmax_weights(const float* logits, int64_t vocab, float temperature, const SoftmaxStats& stats,
                     float* out) {
  const formats::IeeeMode ieee;
  const F8 max = f8(stats.max);
  int64_t i = 0;
  for_each_eight(logits, vocab, temperature, kMinusInfinity, [&](int64_t, F8 z) {
    const F8 p = exp8(_mm256_sub_ps(z, max));
    if (i + 8 <= vocab) {
      store8(out + i, p);
    } else {
      store_tail(out + i, p, vocab - i);
    }
    i += 8;
  });
}

}  // namespace accord::kernels
