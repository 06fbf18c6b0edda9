#include <bit>
#include <cmath>
#include <limits>

#include "kernels/math/math.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {

float exp_f32(float x) {
  using C = ExpConstants;
  x = C::kHigh < x ? C::kHigh : x;  // NaN compares false and stays
  x = C::kLow > x ? C::kLow : x;
  const float shifted = std::fma(x, C::kLog2e, C::kMagic);
  const float n = shifted - C::kMagic;
  float r = std::fma(-n, C::kLn2Hi, x);
  r = std::fma(-n, C::kLn2Lo, r);
  float p = std::fma(C::kC6, r, C::kC5);
  p = std::fma(p, r, C::kC4);
  p = std::fma(p, r, C::kC3);
  p = std::fma(p, r, C::kC2);
  p = std::fma(p, r * r, r);
  p = p + 1.0F;
  if (x != x) {
    return p;  // NaN; its n has no integer value
  }
  const int32_t k = static_cast<int32_t>(n);
  const int32_t k1 = k >> 1;
  const int32_t k2 = k - k1;
  const float s1 = std::bit_cast<float>(static_cast<uint32_t>(k1 + 127) << 23);
  const float s2 = std::bit_cast<float>(static_cast<uint32_t>(k2 + 127) << 23);
  return p * s1 * s2;
}

float log_f32(float x) {
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
  float series = std::fma(z, 2.0F / 9.0F, 2.0F / 7.0F);
  series = std::fma(series, z, 2.0F / 5.0F);
  series = std::fma(series, z, 2.0F / 3.0F);
  const float rest = z * series;
  const float half_square = 0.5F * f * f;
  const float kf = static_cast<float>(k);
  const float low = std::fma(s, half_square + rest, kf * kLn2Lo);
  return std::fma(kf, kLn2Hi, f - (half_square - low));
}

void exp_rows(const float* x, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    store8(out + i, exp8(load8(x + i)));
  }
  if (i < count) {
    store_tail(out + i, exp8(load_tail(x + i, count - i)), count - i);
  }
}

}  // namespace accord::kernels
