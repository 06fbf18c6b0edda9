#include "kernels/formats/amax.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/formats/avx2.hpp"
#include "kernels/formats/ieee_mode.hpp"
#include "kernels/formats/visit.hpp"

namespace accord::formats {
namespace {

template <class T>
float row_amax(const T* x, int64_t n) {
  // max_ps gives its second operand where the first is NaN.
  __m256 acc[4] = {};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int j = 0; j < 4; ++j) {
      acc[j] = _mm256_max_ps(avx2::abs8(avx2::load8(x + i + 8 * j)), acc[j]);
    }
  }
  for (; i + 8 <= n; i += 8) {
    acc[0] = _mm256_max_ps(avx2::abs8(avx2::load8(x + i)), acc[0]);
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, _mm256_max_ps(_mm256_max_ps(acc[0], acc[1]), _mm256_max_ps(acc[2], acc[3])));
  float result = *std::max_element(lanes, lanes + 8);
  for (; i < n; ++i) {
    const float magnitude = std::fabs(to_float(x[i]));
    result = magnitude > result ? magnitude : result;
  }
  return result;
}

}  // namespace

float amax(MatrixView x) {
  require(check_input(x));
  const IeeeMode mode;
  float result = 0.0F;
  visit_elements(x, [&](const auto* data) {
    for (int64_t r = 0; r < x.rows; ++r) {
      result = std::max(result, row_amax(data + r * x.stride, x.cols));
    }
  });
  return result;
}

}  // namespace accord::formats
