#include <cassert>
#include <cmath>

#include "kernels/math/simd.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"

namespace accord::kernels {
namespace {

template <class T>
float sum_of_squares(const T* x, int64_t n) {
  F8 lanes[2] = {f8_zero(), f8_zero()};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F8 a = load8(x + i);
    const F8 b = load8(x + i + 8);
    lanes[0] = _mm256_fmadd_ps(a, a, lanes[0]);
    lanes[1] = _mm256_fmadd_ps(b, b, lanes[1]);
  }
  if (i + 8 <= n) {
    const F8 a = load8(x + i);
    lanes[0] = _mm256_fmadd_ps(a, a, lanes[0]);
    i += 8;
    if (i < n) {
      const F8 b = load_tail(x + i, n - i);
      lanes[1] = _mm256_fmadd_ps(b, b, lanes[1]);
    }
  } else if (i < n) {
    const F8 a = load_tail(x + i, n - i);
    lanes[0] = _mm256_fmadd_ps(a, a, lanes[0]);
  }
  return reduce8(_mm256_add_ps(lanes[0], lanes[1]));
}

template <class T>
void norm_row(const T* x, const BF16* weight, float eps, int64_t n, T* y, float* inv_rms) {
  const float inv = 1.0F / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    T rounded[8];
    store8(rounded, _mm256_mul_ps(load8(x + i), f8(inv)));
    store8(y + i, _mm256_mul_ps(load8(weight + i), load8(rounded)));
  }
  for (; i < n; ++i) {
    const T rounded = from_float<T>(to_float(x[i]) * inv);
    y[i] = from_float<T>(to_float(weight[i]) * to_float(rounded));
  }
  if (inv_rms != nullptr) {
    *inv_rms = inv;
  }
}

}  // namespace

void rms_norm(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms) {
  assert(x.dtype == y.dtype && x.rows <= y.rows && x.cols == y.cols);
  for (int64_t r = 0; r < x.rows; ++r) {
    float* inv = inv_rms == nullptr ? nullptr : inv_rms + r;
    if (x.dtype == Dtype::kBF16) {
      norm_row(x.row<BF16>(r), weight, eps, x.cols, y.row<BF16>(r), inv);
    } else {
      norm_row(x.row<float>(r), weight, eps, x.cols, y.row<float>(r), inv);
    }
  }
}

}  // namespace accord::kernels
