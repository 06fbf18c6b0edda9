#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

#include "kernels/math/simd.hpp"
#include "kernels/rope/rope.hpp"

namespace accord::kernels {
namespace {

// transformers' _compute_llama3_parameters.
double scaled_frequency(double frequency, const RopeScaling& s) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto old_length = static_cast<double>(s.original_max_position);
  if (wavelength > old_length / s.low_freq_factor) {
    return frequency / s.factor;
  }
  if (wavelength < old_length / s.high_freq_factor) {
    return frequency;
  }
  const double smooth =
      (old_length / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - smooth) * frequency / s.factor + smooth * frequency;
}

template <class T>
void rotate_head(const T* x, const float* cos, const float* sin, int64_t half, T* y) {
  int64_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const F8 a = load8(x + i);
    const F8 b = load8(x + half + i);
    const F8 c = load8(cos + i);
    const F8 s = load8(sin + i);
    store8(y + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
    store8(y + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
  }
  for (; i < half; ++i) {
    const float a = to_float(x[i]);
    const float b = to_float(x[half + i]);
    y[i] = from_float<T>(a * cos[i] - b * sin[i]);
    y[half + i] = from_float<T>(b * cos[i] + a * sin[i]);
  }
}

template <class T>
void rotate_rows(MatrixView x, const int32_t* positions, const RopeTable& table, MatrixView y,
                 const int32_t* y_rows) {
  const int64_t dim = table.head_dim();
  for (int64_t t = 0; t < x.rows; ++t) {
    const T* in = x.row<T>(t);
    T* out = y.row<T>(y_rows == nullptr ? t : y_rows[t]);
    const float* cos = table.cos(positions[t]);
    const float* sin = table.sin(positions[t]);
    for (int64_t h = 0; h < x.cols; h += dim) {
      rotate_head(in + h, cos, sin, dim / 2, out + h);
    }
  }
}

}  // namespace

RopeTable::RopeTable(int64_t head_dim, double theta, const RopeScaling& scaling) : half_(head_dim / 2) {
  for (int64_t i = 0; i < half_; ++i) {
    double f = 1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim));
    if (scaling.factor != 1.0) {
      f = scaled_frequency(f, scaling);
    }
    frequencies_.push_back(static_cast<float>(f));
  }
}

void RopeTable::ensure(int64_t count) {
  if (count <= positions_) {
    return;
  }
  count = std::max(count, 2 * positions_);
  cos_.resize(static_cast<size_t>(count * half_));
  sin_.resize(static_cast<size_t>(count * half_));
  for (int64_t p = positions_; p < count; ++p) {
    for (int64_t i = 0; i < half_; ++i) {
      const float angle = static_cast<float>(p) * frequencies_[static_cast<size_t>(i)];
      const auto at = static_cast<size_t>(p * half_ + i);
      cos_[at] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin_[at] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  positions_ = count;
}

void apply_rope(MatrixView x, const int32_t* positions, const RopeTable& table, MatrixView y,
                const int32_t* y_rows) {
  assert(x.dtype == y.dtype && x.cols == y.cols && x.cols % table.head_dim() == 0);
  if (x.dtype == Dtype::kBF16) {
    rotate_rows<BF16>(x, positions, table, y, y_rows);
  } else {
    rotate_rows<float>(x, positions, table, y, y_rows);
  }
}

}  // namespace accord::kernels
