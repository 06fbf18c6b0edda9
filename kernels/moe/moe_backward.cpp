#include "kernels/moe/moe_backward.hpp"

#include <algorithm>

#include "kernels/math/simd.hpp"

namespace accord::kernels {

namespace {

constexpr int64_t kLanes = 8;

template <class T>
float scale_and_dot(const float* dy, const T* down, float weight, int64_t width, float* ddown) {
  const int64_t vector_end = width - width % kLanes;
  F8 sum8 = f8_zero();
  for (int64_t h = 0; h < vector_end; h += kLanes) {
    const F8 dy8 = load8(dy + h);
    store8(ddown + h, dy8 * f8(weight));
    sum8 = _mm256_fmadd_ps(dy8, load8(down + h), sum8);
  }
  float sum = reduce8(sum8);
  for (int64_t h = vector_end; h < width; ++h) {
    ddown[h] = dy[h] * weight;
    sum += dy[h] * to_float(down[h]);
  }
  return sum;
}

}  // namespace

void moe_combine_backward(const float* dy_TH, int64_t hidden, MatrixView down_RH, const int32_t* tokens,
                          const int32_t* slots, const float* weights_TK, int64_t num_slots, int64_t row_begin,
                          int64_t row_end, float* ddown_RH, float* dweights_TK) {
  for (int64_t r = row_begin; r < row_end; ++r) {
    const int64_t slot = tokens[r] * num_slots + slots[r];
    const float* dy = dy_TH + tokens[r] * hidden;
    float* ddown = ddown_RH + r * hidden;
    dweights_TK[slot] = down_RH.dtype == Dtype::kBF16
                            ? scale_and_dot(dy, down_RH.row<BF16>(r), weights_TK[slot], hidden, ddown)
                            : scale_and_dot(dy, down_RH.row<float>(r), weights_TK[slot], hidden, ddown);
  }
}

void moe_dispatch_backward(const float* dx_RH, int64_t hidden, const int32_t* rows_TK, int64_t num_slots,
                           int64_t token_begin, int64_t token_end, float* dx_TH) {
  for (int64_t t = token_begin; t < token_end; ++t) {
    float* dx = dx_TH + t * hidden;
    for (int64_t k = 0; k < num_slots; ++k) {
      const float* row = dx_RH + rows_TK[t * num_slots + k] * hidden;
      for (int64_t h = 0; h < hidden; ++h) dx[h] += row[h];
    }
  }
}

void router_backward(const float* probs_TE, int64_t num_experts, const int32_t* ids_TK,
                     const float* dweights_TK, int64_t num_slots, bool normalized, int64_t token_begin,
                     int64_t token_end, float* dlogits_TE) {
  for (int64_t t = token_begin; t < token_end; ++t) {
    const float* probs = probs_TE + t * num_experts;
    const int32_t* ids = ids_TK + t * num_slots;
    const float* dweights = dweights_TK + t * num_slots;
    float* dlogits = dlogits_TE + t * num_experts;
    float chosen = 0.0F;  // S
    float inner = 0.0F;   // sum_j dweight_j * p_j
    for (int64_t k = 0; k < num_slots; ++k) {
      chosen += probs[ids[k]];
      inner += dweights[k] * probs[ids[k]];
    }
    const float shift = normalized ? inner / chosen : 0.0F;
    const float scale = normalized ? 1.0F / chosen : 1.0F;
    // sum_j p_j dp_j is 0 when normalized, up to rounding; it is computed the same way in both cases.
    float mean = 0.0F;
    for (int64_t k = 0; k < num_slots; ++k) mean += probs[ids[k]] * ((dweights[k] - shift) * scale);
    for (int64_t e = 0; e < num_experts; ++e) dlogits[e] = -probs[e] * mean;
    for (int64_t k = 0; k < num_slots; ++k)
      dlogits[ids[k]] += probs[ids[k]] * ((dweights[k] - shift) * scale);
  }
}

void router_backward(const RouterRule& rule, const float* scores_TE, const int32_t* ids_TK,
                     const float* dweights_TK, int64_t token_begin, int64_t token_end, float* dlogits_TE) {
  if (rule.scoring == RouterScoring::kSoftmax) {
    router_backward(scores_TE, rule.experts, ids_TK, dweights_TK, rule.k, rule.normalize, token_begin,
                    token_end, dlogits_TE);
    return;
  }
  for (int64_t t = token_begin; t < token_end; ++t) {
    const float* scores = scores_TE + t * rule.experts;
    const int32_t* ids = ids_TK + t * rule.k;
    const float* dweights = dweights_TK + t * rule.k;
    float* dlogits = dlogits_TE + t * rule.experts;
    float sum = 0.0F;
    float inner = 0.0F;  // sum_j dweight_j * s_j
    for (int64_t k = 0; k < rule.k; ++k) {
      sum += scores[ids[k]];
      inner += dweights[k] * scores[ids[k]];
    }
    const float divisor = rule.normalize ? sum + kRouterEpsilon : 1.0F;
    const float shift = rule.normalize ? inner / divisor : 0.0F;
    std::fill_n(dlogits, rule.experts, 0.0F);
    for (int64_t k = 0; k < rule.k; ++k) {
      const float s = scores[ids[k]];
      dlogits[ids[k]] = rule.factor * (dweights[k] - shift) / divisor * (s * (1.0F - s));
    }
  }
}

}  // namespace accord::kernels
