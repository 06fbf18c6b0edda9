#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/math/simd.hpp"
#include "kernels/moe/moe.hpp"

namespace accord::kernels {
namespace {

template <class T>
void combine_row(const T* x, MatrixView down, const float* weights, const int32_t* rows, int64_t k, T* y) {
  const int64_t n = down.cols;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    F8 sum = f8_zero();
    for (int64_t s = 0; s < k; ++s) {
      sum = _mm256_fmadd_ps(f8(weights[s]), load8(down.row<T>(rows[s]) + i), sum);
    }
    T rounded[8];
    store8(rounded, sum);
    store8(y + i, _mm256_add_ps(load8(x + i), load8(rounded)));
  }
  for (; i < n; ++i) {
    float sum = 0.0F;
    for (int64_t s = 0; s < k; ++s) {
      sum = std::fma(weights[s], to_float(down.row<T>(rows[s])[i]), sum);
    }
    y[i] = from_float<T>(to_float(x[i]) + to_float(from_float<T>(sum)));
  }
}

}  // namespace

void sort_by_expert(std::span<const int32_t> ids, int64_t experts, int64_t k, ExpertOrder order) {
  int32_t* offsets = order.expert_offsets;
  std::fill(offsets, offsets + experts + 1, 0);
  for (const int32_t id : ids) {
    assert(id >= 0 && id < experts);
    ++offsets[id + 1];
  }
  for (int64_t e = 0; e < experts; ++e) {
    offsets[e + 1] += offsets[e];
  }
  // Counting sort: offsets[e] serves as the write position of expert e, and is moved back at the end.
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t row = offsets[ids[i]]++;
    order.sorted_tokens[row] = static_cast<int32_t>(static_cast<int64_t>(i) / k);
    order.sorted_slots[row] = static_cast<int32_t>(static_cast<int64_t>(i) % k);
    order.slot_rows[i] = row;
  }
  for (int64_t e = experts; e > 0; --e) {
    offsets[e] = offsets[e - 1];
  }
  offsets[0] = 0;
}

void combine_experts(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
                     int64_t row_begin, int64_t row_end, MatrixView y) {
  assert(x.dtype == down.dtype && x.dtype == y.dtype && x.cols == down.cols && x.cols == y.cols);
  for (int64_t t = row_begin; t < row_end; ++t) {
    if (x.dtype == Dtype::kBF16) {
      combine_row(x.row<BF16>(t), down, weights + t * k, slot_rows + t * k, k, y.row<BF16>(t));
    } else {
      combine_row(x.row<float>(t), down, weights + t * k, slot_rows + t * k, k, y.row<float>(t));
    }
  }
}

}  // namespace accord::kernels
