#pragma once
// NVFP4's outer scale, as host and device compute it (docs/contract.md, section 3).
#include <cfloat>

namespace accord::formats {

// The outer scale and what is derived from it once per scope.
struct OuterScale {
  float amax;     // A
  float s;        // S
  float inverse;  // sd = fl(1/S): what the modelopt layout stores as weight_scale_2
  float t;        // fl(S * fl(1/6))
  float divisor;  // 6*range
};

// min(x, FLT_MAX) of a non-negative value; NaN gives FLT_MAX.
constexpr float clamp_finite(float x) { return x < FLT_MAX ? x : FLT_MAX; }

constexpr OuterScale make_outer_scale(float amax, int range) {
  constexpr float kSixth = 1.0F / 6.0F;
  const float divisor = static_cast<float>(6 * range);
  float s = 1.0F;
  if (amax != 0.0F) {
    const float quotient = clamp_finite(divisor / amax);
    s = quotient == 0.0F ? 1.0F : quotient;
  }
  return {amax, s, 1.0F / s, s * kSixth, divisor};
}

}  // namespace accord::formats
