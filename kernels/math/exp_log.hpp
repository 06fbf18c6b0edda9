#pragma once
// Internal to the kernels: the scalar exp and log of math.hpp, one function for host and device. Device code
// computes the same IEEE operations in the same order, so its bits are the same.
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.hpp"

namespace accord::kernels {

// Constants of exp. 12582912 = 1.5 * 2^23: adding it rounds to an integer.
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

ACCORD_HOST_DEVICE inline float exp_scalar(float x) {
  using C = ExpConstants;
  x = C::kHigh < x ? C::kHigh : x;  // NaN compares false and stays
  x = C::kLow > x ? C::kLow : x;
  const float shifted = fmaf(x, C::kLog2e, C::kMagic);
  const float n = shifted - C::kMagic;
  float r = fmaf(-n, C::kLn2Hi, x);
  r = fmaf(-n, C::kLn2Lo, r);
  float p = fmaf(C::kC6, r, C::kC5);
  p = fmaf(p, r, C::kC4);
  p = fmaf(p, r, C::kC3);
  p = fmaf(p, r, C::kC2);
  p = fmaf(p, r * r, r);
  p = p + 1.0F;
  if (x != x) {
    return p;  // NaN; its n has no integer value
  }
  // The low bits of the shifted number are n; n = k1 + k2, each a power of two that is representable.
  const int32_t k = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4b400000u);
  const int32_t k1 = k >> 1;
  const int32_t k2 = k - k1;
  const float s1 = std::bit_cast<float>(static_cast<uint32_t>(k1 + 127) << 23);
  const float s2 = std::bit_cast<float>(static_cast<uint32_t>(k2 + 127) << 23);
  return p * s1 * s2;
}

// exp_scalar of x <= 0 or NaN, the same bits in fewer instructions: one power of two, 2^(n + 64), scales the
// polynomial while 1 is added, and 2^-64 rounds once more where the result is subnormal.
ACCORD_HOST_DEVICE inline float exp_nonpositive(float x) {
  using C = ExpConstants;
  constexpr float kShiftedMagic = C::kMagic + 64.0F + 127.0F;  // no x * kLog2e lies half way between integers
#ifdef __CUDA_ARCH__
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(x), "f"(C::kLow));
#else
  x = C::kLow > x ? C::kLow : x;
#endif
  const float shifted = fmaf(x, C::kLog2e, kShiftedMagic);
  const float n = shifted - kShiftedMagic;
  float r = fmaf(-n, C::kLn2Hi, x);
  r = fmaf(-n, C::kLn2Lo, r);
  float p = fmaf(C::kC6, r, C::kC5);
  p = fmaf(p, r, C::kC4);
  p = fmaf(p, r, C::kC3);
  p = fmaf(p, r, C::kC2);
  p = fmaf(p, r * r, r);
  // The low bits of the shifted number are n + 64 + 127, an exponent's.
  const float scale = std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
  return fmaf(p, scale, scale) * 0x1p-64F;
}

ACCORD_HOST_DEVICE inline float log_scalar(float x) {
  constexpr float kLn2Hi = 0x1.62e400p-1F;
  constexpr float kLn2Lo = 0x1.7f7d1cp-20F;
  constexpr uint32_t kInfBits = 0x7f800000u;
  constexpr uint32_t kRootHalf = 0x3f3504f3u;  // sqrt(1/2)
  if (x != x || std::bit_cast<uint32_t>(x) == kInfBits) {
    return x;
  }
  if (x < 0.0F) {
    return std::bit_cast<float>(0x7fc00000u);
  }
  if (x == 0.0F) {
    return std::bit_cast<float>(kInfBits | 0x80000000u);
  }
  int32_t k = 0;
  if (x < 0x1p-126F) {
    x *= 0x1p23F;
    k = -23;
  }
  // m in [sqrt(1/2), sqrt(2)).
  const uint32_t bits = std::bit_cast<uint32_t>(x) + (0x3f800000u - kRootHalf);
  k += static_cast<int32_t>(bits >> 23) - 127;
  const float m = std::bit_cast<float>((bits & 0x007fffffu) + kRootHalf);
  const float f = m - 1.0F;
  const float s = f / (2.0F + f);
  const float z = s * s;
  float series = fmaf(z, 2.0F / 9.0F, 2.0F / 7.0F);
  series = fmaf(series, z, 2.0F / 5.0F);
  series = fmaf(series, z, 2.0F / 3.0F);
  const float rest = z * series;
  const float half_square = 0.5F * f * f;
  const float kf = static_cast<float>(k);
  const float low = fmaf(s, half_square + rest, kf * kLn2Lo);
  return fmaf(kf, kLn2Hi, f - (half_square - low));
}

}  // namespace accord::kernels
