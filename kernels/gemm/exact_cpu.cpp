#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/gemm/exact.hpp"

namespace accord::kernels {
namespace {

constexpr int64_t kPanel = 16;  // rows of B that are widened together
constexpr uint32_t kExponentMask = 0x7f800000u;
constexpr uint32_t kMinPower = 0x00800000u;  // 2^-126, the exponent of subnormals
constexpr double kFloor = 0x1p-133;          // of the largest exponent
constexpr int kFraction = 25;

// A row of operands: value and 2^exponent (0 for zeros), both exact in fp32.
struct WideRow {
  std::vector<float> value;
  std::vector<float> power;
  bool finite = true;

  template <class T>
  void assign(const T* x, int64_t k) {
    value.resize(static_cast<size_t>(k));
    power.resize(static_cast<size_t>(k));
    finite = true;
    for (size_t i = 0; i < value.size(); ++i) {
      const auto bits = std::bit_cast<uint32_t>(to_float(x[i]));
      assert((bits & 0xffffu) == 0);
      const uint32_t exponent = bits & kExponentMask;
      finite = finite && exponent != kExponentMask;
      value[i] = std::bit_cast<float>(bits);
      power[i] = value[i] == 0.0F ? 0.0F : std::bit_cast<float>(std::max(exponent, kMinPower));
    }
  }
};

// Any operand or the accumulator is not finite.
float special_step(const float* a, const float* b, float acc) {
  bool positive = false;
  bool negative = false;
  const auto take = [&](float x) {
    positive = positive || x == std::numeric_limits<float>::infinity();
    negative = negative || x == -std::numeric_limits<float>::infinity();
    return x != x;
  };
  bool nan = take(acc);
  for (int64_t i = 0; i < kTensorCoreGroup; ++i) {
    const bool infinite = std::isinf(a[i]) || std::isinf(b[i]);
    // A finite product may exceed fp32 without being infinite here.
    nan = take(infinite || a[i] != a[i] || b[i] != b[i] ? a[i] * b[i] : 0.0F) || nan;
  }
  if (nan || (positive && negative)) return std::numeric_limits<float>::quiet_NaN();
  return positive ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
}

// Toward zero; past the largest fp32 to infinity. x is an fp32-sized sum, exact in double.
float cut(double x) {
  float f = static_cast<float>(x);
  if (std::isinf(f)) {
    const bool fits = std::fabs(x) < 0x1p128;
    return fits ? std::copysign(std::numeric_limits<float>::max(), f) : f;
  }
  if (std::fabs(static_cast<double>(f)) > std::fabs(x)) {
    f = std::bit_cast<float>(std::bit_cast<uint32_t>(f) - 1);
  }
  return f;
}

__m256d widen4(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }

double horizontal_max(__m256d x) {
  const __m128d pair = _mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_max_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

double horizontal_sum(__m256d x) {  // of integers below 2^53: any order is exact
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

float finite_step(const float* a, const float* a_power, const float* b, const float* b_power, float acc) {
  constexpr int kToZero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
  const uint32_t acc_exponent = std::max(std::bit_cast<uint32_t>(acc) & kExponentMask, kMinPower);
  __m256d power =
      _mm256_set1_pd(acc == 0.0F ? kFloor : static_cast<double>(std::bit_cast<float>(acc_exponent)));
  __m256d product[4];
  for (int i = 0; i < 4; ++i) {
    product[i] = _mm256_mul_pd(widen4(a + 4 * i), widen4(b + 4 * i));
    power = _mm256_max_pd(power, _mm256_mul_pd(widen4(a_power + 4 * i), widen4(b_power + 4 * i)));
  }
  const double top = horizontal_max(power);
  // 2^25 / top: top is a power of two.
  const auto scale_bits = (uint64_t{2 * 1023 + kFraction} << 52) - std::bit_cast<uint64_t>(top);
  const __m256d scale = _mm256_set1_pd(std::bit_cast<double>(scale_bits));
  __m256d sum = _mm256_setzero_pd();
  for (int i = 0; i < 4; ++i) {
    sum = _mm256_add_pd(sum, _mm256_round_pd(_mm256_mul_pd(product[i], scale), kToZero));
  }
  const double total =
      horizontal_sum(sum) + std::trunc(static_cast<double>(acc) * std::bit_cast<double>(scale_bits));
  return cut(total * (top * 0x1p-25)) + 0.0F;  // no negative zero
}

float chain(const WideRow& a, const WideRow& b, int64_t k) {
  float acc = 0.0F;
  const bool finite = a.finite && b.finite;
  for (int64_t p = 0; p < k; p += kTensorCoreGroup) {
    const float* av = a.value.data() + p;
    const float* bv = b.value.data() + p;
    bool special = !std::isfinite(acc);
    if (!finite) {
      for (int64_t i = 0; i < kTensorCoreGroup; ++i) {
        special = special || !std::isfinite(av[i]) || !std::isfinite(bv[i]);
      }
    }
    acc = special ? special_step(av, bv, acc)
                  : finite_step(av, a.power.data() + p, bv, b.power.data() + p, acc);
  }
  return acc;
}

template <class T>
void products(const T* const* a, int64_t m, const T* const* b, int64_t n, int64_t k, float* c, int64_t ldc) {
  WideRow row;
  std::vector<WideRow> panel(static_cast<size_t>(std::min(n, kPanel)));
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t count = std::min(kPanel, n - begin);
    for (int64_t j = 0; j < count; ++j) panel[static_cast<size_t>(j)].assign(b[begin + j], k);
    for (int64_t i = 0; i < m; ++i) {
      row.assign(a[i], k);
      for (int64_t j = 0; j < count; ++j)
        c[i * ldc + begin + j] = chain(row, panel[static_cast<size_t>(j)], k);
    }
  }
}

}  // namespace

float tensor_core_step(const BF16* a, const BF16* b, float acc) {
  WideRow wide_a;
  WideRow wide_b;
  wide_a.assign(a, kTensorCoreGroup);
  wide_b.assign(b, kTensorCoreGroup);
  if (!wide_a.finite || !wide_b.finite || !std::isfinite(acc)) {
    return special_step(wide_a.value.data(), wide_b.value.data(), acc);
  }
  return finite_step(wide_a.value.data(), wide_a.power.data(), wide_b.value.data(), wide_b.power.data(), acc);
}

void gemm_rows_exact(const BF16* const* a, int64_t m, const BF16* const* b, int64_t n, int64_t k, float* c,
                     int64_t ldc) {
  products(a, m, b, n, k, c, ldc);
}

void gemm_rows_exact(const float* const* a, int64_t m, const float* const* b, int64_t n, int64_t k, float* c,
                     int64_t ldc) {
  products(a, m, b, n, k, c, ldc);
}

}  // namespace accord::kernels
