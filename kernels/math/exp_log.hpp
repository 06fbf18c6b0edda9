#pragma once
// exp and log of math.hpp as functions of the CPU and of the GPU: the same IEEE operations, so the same bits.
// Bodies are here because device code needs them inline.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define ACCORD_HOST_DEVICE __host__ __device__
#else
#define ACCORD_HOST_DEVICE
#endif

namespace accord::kernels {

// Constants of exp (math.hpp). 12582912 = 1.5 * 2^23: adding it rounds to an integer.
struct ExpConstants {
  static constexpr float kHigh = 89.0F;
  static constexpr float kLow = -104.0F;
  static constexpr float kLog2e = 0x1.715476p+0F;
  static constexpr float kLn2Hi = 0x1.62e400p-1F;  // 11 trailing zero bits: n * kLn2Hi is exact
  static constexpr float kLn2Lo = 0x1.7f7d1cp-20F;
  static constexpr float kMagic = 12582912.0F;
  static constexpr float kC2 = 0x1.fffffcp-2F;
  static constexpr float kC3 = 0x1.555490p-3F;
  static constexpr float kC4 = 0x1.5558f4p-5F;
  static constexpr float kC5 = 0x1.123a6ap-7F;
  static constexpr float kC6 = 0x1.6a2358p-10F;
};

ACCORD_HOST_DEVICE inline float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

ACCORD_HOST_DEVICE inline float exp_scalar(float x) {
  using C = ExpConstants;
  x = C::kHigh < x ? C::kHigh : x;  // NaN compares false and stays
  x = C::kLow > x ? C::kLow : x;
  const float shifted = fused(x, C::kLog2e, C::kMagic);
  const float n = shifted - C::kMagic;
  float r = fused(-n, C::kLn2Hi, x);
  r = fused(-n, C::kLn2Lo, r);
  float p = fused(C::kC6, r, C::kC5);
  p = fused(p, r, C::kC4);
  p = fused(p, r, C::kC3);
  p = fused(p, r, C::kC2);
  p = fused(p, r * r, r);
  p = p + 1.0F;
  if (x != x) {
    return p;  // NaN; its n has no integer value
  }
  const auto k = static_cast<int32_t>(n);
  const int32_t k1 = k >> 1;
  const int32_t k2 = k - k1;
  const float s1 = std::bit_cast<float>(static_cast<uint32_t>(k1 + 127) << 23);
  const float s2 = std::bit_cast<float>(static_cast<uint32_t>(k2 + 127) << 23);
  return p * s1 * s2;
}

ACCORD_HOST_DEVICE inline float log_scalar(float x) {
  constexpr float kLn2Hi = 0x1.62e400p-1F;
  constexpr float kLn2Lo = 0x1.7f7d1cp-20F;
  if (x != x || x == std::numeric_limits<float>::infinity()) {
    return x;
  }
  if (x < 0.0F) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (x == 0.0F) {
    return -std::numeric_limits<float>::infinity();
  }
  int32_t k = 0;
  if (x < 0x1p-126F) {
    x *= 0x1p23F;
    k = -23;
  }
  // m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
  const uint32_t bits = std::bit_cast<uint32_t>(x) + (0x3f800000u - 0x3f3504f3u);
  k += static_cast<int32_t>(bits >> 23) - 127;
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u);
  const float f = m - 1.0F;
  const float s = f / (2.0F + f);
  const float z = s * s;
  float series = fused(z, 2.0F / 9.0F, 2.0F / 7.0F);
  series = fused(series, z, 2.0F / 5.0F);
  series = fused(series, z, 2.0F / 3.0F);
  const float rest = z * series;
  const float half_square = 0.5F * f * f;
  const auto kf = static_cast<float>(k);
  const float low = fused(s, half_square + rest, kf * kLn2Lo);
  return fused(kf, kLn2Hi, f - (half_square - low));
}

}  // namespace accord::kernels
