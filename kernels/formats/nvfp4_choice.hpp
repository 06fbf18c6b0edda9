#pragma once
// Internal to kernels/formats: four over six without the decoder's arithmetic, for kernels that are bound by
// arithmetic. Which candidate wins follows from errors in units of a candidate's scale, unless the two are so
// close that the roundings of the contract (docs/contract.md, section 3) could decide; then the caller goes
// by the contract's own sums. The codes are exact in any case.
//
// With u = s*A/(6R) and a = fl(|x|*k), k = fl(1/fl(s*sd)) is 1/u up to 4 roundings, and the decoded value of
// q is q*u up to 2. q <= 6 and a < 6.4, so the contract's d is u*(q-a) up to u*D, D = 46*2^-24. Hence, for
// any L > 0 and N elements, with E the sum of (q-a)^2,
//
//   |e - u^2*E| <= u^2*(L*E + N*D^2*(1 + 1/L)) + roundings of the two sums, at most (N+2)*2^-24*E each,
//
// and for absolute errors |e - u*E| <= u*N*D + roundings. What follows takes at least twice that.
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.hpp"

namespace accord::formats {

struct Choice {
  bool four;
  bool sure;
};

// What the functions below assume of a block and of its outer scale: no product, square or sum that they or
// the contract make underflows or overflows, and every a is below 6.4. `base` is b of the contract, s6 the
// candidate's value, 448 for every larger base: the block that holds A may come out a rounding above it. A
// NaN or an Inf among x makes b or the errors such that the answer is not sure.
ACCORD_HOST_DEVICE inline bool is_ordinary(float base, float s6) { return base <= 464.0F && s6 >= 0x1p-6F; }
ACCORD_HOST_DEVICE inline bool is_ordinary_scope(float amax) { return amax > 0x1p-45F && amax < 0x1p60F; }

// n/6 with the rounding of a division, unless the result is below 2^-100 (and then it is nearly that).
ACCORD_HOST_DEVICE inline float divide_by_six(float n) {
  constexpr float kSixth = 1.0F / 6.0F;
  const float quotient = n * kSixth;
  return fmaf(fmaf(-quotient, 6.0F, n), kSixth, quotient);
}

// |x|*k rounded to E2M1 and its error, both times 2^-6: so that the codes are the subnormals and the first
// normals of E4M3, whose bits are the code times 4. `multiplier` is k*2^-6.
struct TriedE2M1 {
  float value;
  float error;
};
ACCORD_HOST_DEVICE inline TriedE2M1 try_e2m1(float x, float multiplier) {
  const float a = fabsf(x) * multiplier;
  // In units of 2^-6: a^2 + 12 reaches 16 at a = 2 and 32 at a = 4.47, its power of two is 8, 16 or 32.
  // Between 1.75 and 2.25 and between 3.5 and 4.5 the grids on both sides round alike.
  const float power =
      std::bit_cast<float>(std::bit_cast<uint32_t>(fmaf(a, a, 12.0F * 0x1p-12F)) & 0x7f800000u);
  const float sum = fmaf(power, 0x1p25F, a);  // to a multiple of power/16
  const float value = fmaf(power, -0x1p25F, sum);
  return {value, value - a};
}

// The sums of squared (absolute: of absolute) errors of try_e2m1 over kElements.
template <int kElements>
ACCORD_HOST_DEVICE inline Choice choose(float error6, float error4, float s6, float s4, bool absolute) {
  constexpr float kElementsF = static_cast<float>(kElements);
  // 16: L = 2^-17. 256: L = 2^-15.
  constexpr float kRelative = kElements <= 16 ? 0x1p-15F : 0x1p-13F;
  const float unit6 = absolute ? s6 : s6 * s6;
  const float unit4 = absolute ? s4 : s4 * s4;
  const float e6 = unit6 * error6;
  const float e4 = unit4 * error4;
  const float margin = absolute ? kElementsF * 0x1p-23F * (unit6 + unit4) + 0x1p-15F * (e6 + e4)
                                : kRelative * ((e6 + e4) + 0x1p-11F * (unit6 + unit4));
  // Near A both candidates are 448, so one and the same. A NaN is not sure.
  const bool same = s4 == s6 && e4 == e6;
  return {e4 < e6, same || fabsf(e4 - e6) > margin};
}

}  // namespace accord::formats
