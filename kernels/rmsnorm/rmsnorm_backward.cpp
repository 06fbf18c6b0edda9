#include "kernels/rmsnorm/rmsnorm_backward.hpp"

#include "kernels/math/simd.hpp"

namespace accord::kernels {

namespace {

constexpr int64_t kLanes = 8;

template <class T>
void backward_rows(MatrixView x_RH, const float* inv_rms, const BF16* weight, const float* dy_RH,
                   float* dx_RH, bool accumulate, float* dweight) {
  const int64_t width = x_RH.cols;
  const int64_t vector_end = width - width % kLanes;
  for (int64_t r = 0; r < x_RH.rows; ++r) {
    const T* x = x_RH.row<T>(r);
    const float* dy = dy_RH + r * width;
    float* dx = dx_RH + r * width;
    const float inv = inv_rms[r];
    F8 sum8 = f8_zero();
    for (int64_t h = 0; h < vector_end; h += kLanes) {
      sum8 = _mm256_fmadd_ps(load8(dy + h) * load8(weight + h), load8(x + h), sum8);
    }
    float sum = reduce8(sum8);
    for (int64_t h = vector_end; h < width; ++h) sum += dy[h] * to_float(weight[h]) * to_float(x[h]);
    const float slope = sum * inv * inv * inv / static_cast<float>(width);
    for (int64_t h = 0; h < vector_end; h += kLanes) {
      const F8 x8 = load8(x + h);
      const F8 dy8 = load8(dy + h);
      store8(dweight + h, _mm256_fmadd_ps(dy8, x8 * f8(inv), load8(dweight + h)));
      F8 dx8 = f8(inv) * (dy8 * load8(weight + h)) - x8 * f8(slope);
      if (accumulate) dx8 = dx8 + load8(dx + h);
      store8(dx + h, dx8);
    }
    for (int64_t h = vector_end; h < width; ++h) {
      const float xh = to_float(x[h]);
      const float dyh = dy[h];
      dweight[h] += dyh * (xh * inv);
      const float value = inv * (dyh * to_float(weight[h])) - xh * slope;
      dx[h] = accumulate ? dx[h] + value : value;
    }
  }
}

}  // namespace

void rmsnorm_backward(MatrixView x_RH, const float* inv_rms, const BF16* weight_H, const float* dy_RH,
                      float* dx_RH, bool accumulate, float* dweight_H) {
  if (x_RH.dtype == Dtype::kBF16) {
    backward_rows<BF16>(x_RH, inv_rms, weight_H, dy_RH, dx_RH, accumulate, dweight_H);
  } else {
    backward_rows<float>(x_RH, inv_rms, weight_H, dy_RH, dx_RH, accumulate, dweight_H);
  }
}

}  // namespace accord::kernels
