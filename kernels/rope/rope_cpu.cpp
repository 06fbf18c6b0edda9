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

// Frequencies under "yarn": divided by the factor where a dimension turns fewer than beta_slow times over the
// original context, as they are where it turns more than beta_fast times, with a linear ramp between.
std::vector<double> yarn_frequencies(int64_t half, double theta, const RopeScaling& s) {
  const auto dim = static_cast<double>(2 * half);
  const auto dimension_of = [&](double turns) {
    return dim * std::log(static_cast<double>(s.original_max_position) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  double low = dimension_of(s.beta_fast);
  double high = dimension_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    constexpr double kNoDivisionByZero = 0.001;
    high += kNoDivisionByZero;
  }
  std::vector<double> out;
  for (int64_t i = 0; i < half; ++i) {
    const double f = 1.0 / std::pow(theta, static_cast<double>(2 * i) / dim);
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    out.push_back(f / s.factor * ramp + f * (1.0 - ramp));
  }
  return out;
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

template <class T>
void rotate_neighbours(const T* x, const float* cos, const float* sin, int64_t half, T* y) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_float(x[2 * i]);
    const float b = to_float(x[2 * i + 1]);
    y[i] = from_float<T>(a * cos[i] - b * sin[i]);
    y[half + i] = from_float<T>(b * cos[i] + a * sin[i]);
  }
}

template <class T>
void rotate_heads(MatrixView x, const RopeHeads& layout, const int32_t* positions, const RopeTable& table,
                  MatrixView y, const int32_t* y_rows) {
  const int64_t half = table.head_dim() / 2;
  for (int64_t t = 0; t < x.rows; ++t) {
    const T* in = x.row<T>(t);
    T* out = y.row<T>(y_rows == nullptr ? t : y_rows[t]);
    const float* cos = table.cos(positions[t]);
    const float* sin = table.sin(positions[t]);
    for (int64_t h = 0; h < layout.heads; ++h, in += layout.x_stride, out += layout.y_stride) {
      if (layout.pairs == RopePairs::kNeighbours) {
        rotate_neighbours(in, cos, sin, half, out);
      } else {
        rotate_head(in, cos, sin, half, out);
      }
    }
  }
}

}  // namespace

RopeTable::RopeTable(int64_t head_dim, double theta, const RopeScaling& scaling)
    : half_(head_dim / 2), factor_(static_cast<float>(rope_attention_factor(scaling))) {
  if (scaling.kind == RopeKind::kYarn) {
    for (const double f : yarn_frequencies(half_, theta, scaling)) {
      frequencies_.push_back(static_cast<float>(f));
    }
    return;
  }
  for (int64_t i = 0; i < half_; ++i) {
    double f = 1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim));
    if (scaling.kind == RopeKind::kLinear) {
      f /= scaling.factor;
    } else if (scaling.kind == RopeKind::kLlama3 && scaling.factor != 1.0) {
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
      cos_[at] = static_cast<float>(std::cos(static_cast<double>(angle))) * factor_;
      sin_[at] = static_cast<float>(std::sin(static_cast<double>(angle))) * factor_;
    }
  }
  positions_ = count;
}

void apply_rope_heads(MatrixView x, const RopeHeads& layout, const int32_t* positions, const RopeTable& table,
                      MatrixView y, const int32_t* y_rows) {
  assert(x.dtype == y.dtype);
  if (x.dtype == Dtype::kBF16) {
    rotate_heads<BF16>(x, layout, positions, table, y, y_rows);
  } else {
    rotate_heads<float>(x, layout, positions, table, y, y_rows);
  }
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
