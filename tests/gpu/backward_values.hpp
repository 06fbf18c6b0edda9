#pragma once
// Inputs and comparisons of the tests of backward kernels.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "device/memory.hpp"
#include "device/tensor_view.hpp"
#include "hard_values.hpp"

namespace gpu_test {

inline constexpr double kUlp = 0x1p-24;     // half of one, relative: the error of a rounding to fp32
inline constexpr double kBf16Ulp = 0x1p-8;  // and to bf16

template <class T>
std::vector<T> normal(uint32_t seed, int64_t count, float scale = 1.0F) {
  std::minstd_rand random(seed + 1);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<T> x(static_cast<size_t>(count));
  for (T& v : x) v = accord::from_float<T>((uniform(random) + uniform(random) + uniform(random)) * scale);
  return x;
}

// Ordinary rows, and every third of hard values.
template <class T>
std::vector<T> mixed(uint32_t seed, int64_t rows, int64_t cols) {
  std::vector<T> x = normal<T>(seed, rows * cols, 3.0F);
  std::vector<T> hard(x.size());
  accord::ThreadPool pool(1);
  fill_hard(seed, rows, cols, hard.data(), pool);
  for (int64_t r = 2; r < rows; r += 3) {
    std::copy_n(hard.begin() + r * cols, cols, x.begin() + r * cols);
  }
  return x;
}

inline std::vector<accord::BF16> rounded(const std::vector<float>& x) {
  std::vector<accord::BF16> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), [](float v) { return accord::to_bf16(v); });
  return y;
}

template <class T>
accord::MatrixView on_device(const accord::Memory& memory, int64_t rows, int64_t cols, int64_t stride) {
  return {memory.data(), accord::DtypeOf<T>::value, rows, cols, stride};
}
template <class T>
accord::MatrixView on_device(const accord::Memory& memory, int64_t rows, int64_t cols) {
  return on_device<T>(memory, rows, cols, cols);
}

template <class T>
size_t bytes_of(int64_t count) {
  return static_cast<size_t>(count) * sizeof(T);
}

// Whether a result is within `bound` of the value; where that is no number or overflows, whether it says so.
inline bool close(double got, double value, double bound) {
  if (!std::isfinite(value) || !std::isfinite(bound) ||
      std::abs(value) + bound > std::numeric_limits<float>::max()) {
    return !std::isfinite(got) || std::isfinite(value);
  }
  return std::abs(got - value) <= bound + 1e-37;
}

}  // namespace gpu_test
