#pragma once
// Internal to kernels/formats: four over six without the decoder's arithmetic, for kernels that are bound by
// arithmetic. Which candidate wins follows from errors in units of a candidate's scale, unless the two are so
// close that the roundings of the contract (docs/contract.md, section 3) could decide; then the caller goes
// by the contract's own sums. The codes are exact in any case.
//
// With u = s*A/(6R) and a = |x|*k, k = fl(1/fl(s*sd)) or the float beside it, k is 1/u up to 6 roundings, a
// may be rounded, and the decoded value of q is q*u up to 2. q <= 6 and a < 6.4, so the contract's d is
// u*(q-a) up to u*D, D = 60*2^-24. Hence, for any L > 0 and N elements, with E the sum of (q-a)^2,
//
//   |e - u^2*E| <= u^2*(L*E + N*D^2*(1 + 1/L)) + roundings of the two sums, of at most N (a tile: 20 and 66)
//                  additions: (N+2)*2^-24*E each,
//
// and for absolute errors |e - u*E| <= u*N*D + roundings. Taking 1/k^2 for u^2 adds 13*2^-24*E. What follows
// takes at least twice that.
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
ACCORD_HOST_DEVICE inline bool is_ordinary(float base, uint32_t code6) {
  return base <= 464.0F && code6 >= 8;
}
ACCORD_HOST_DEVICE inline bool is_ordinary_scope(float amax) { return amax > 0x1p-40F && amax < 0x1p40F; }

// n/6 with the rounding of a division, unless the result is below 2^-100 (and then it is nearly that).
ACCORD_HOST_DEVICE inline float divide_by_six(float n) {
  constexpr float kSixth = 1.0F / 6.0F;
  const float quotient = n * kSixth;
  return fmaf(fmaf(-quotient, 6.0F, n), kSixth, quotient);
}

// |x|*k rounded to E2M1 and its error, both times 2^-6: so that the codes are the subnormals and the first
// normals of E4M3, whose bits are the code times 4. `multiplier` is k*2^-6.
constexpr float kPowerOffset = 12.5F * 0x1p-12F;
struct TriedE2M1 {
  float value;
  float error;
};
ACCORD_HOST_DEVICE inline TriedE2M1 try_e2m1(float x, float multiplier) {
  const float a = fabsf(x) * multiplier;
  // In units of 2^-6: a^2 + 12.5 reaches 16 at a = 1.87 and 32 at a = 4.42, its power of two is 8, 16 or 32.
  // Between 1.75 and 2.25 and between 3.5 and 4.5 the grids on both sides round alike.
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(fmaf(a, a, kPowerOffset)) & 0x7f800000u);
  const float sum = fmaf(power, 0x1p25F, a);  // to a multiple of power/16
  const float value = fmaf(power, -0x1p25F, sum);
  return {value, value - a};
}

// The same for bf16, a grid given by an offset: a multiple of the grid (without kNudged: an even one) whose
// exponent selects it, and which stays in its binade when 8*2^-6 is added. kNudged: `multiplier` is, which
// saves a rounding.
template <bool kNudged>
ACCORD_HOST_DEVICE inline TriedE2M1 try_e2m1(float magnitude, float multiplier, float offset) {
  if constexpr (kNudged) {
    const float value = fmaf(magnitude, multiplier, offset) - offset;
    return {value, fmaf(-magnitude, multiplier, value)};
  } else {
    const float a = magnitude * multiplier;
    const float value = (a + offset) - offset;
    return {value, value - a};
  }
}

// A nudged k: for every bf16 x the exact product x*k lies on the side of a tie of E2M1 to which the contract
// rounds fl(x*k), and on no tie. Only significands matter, and for each of the ties, 4, 5, 6 and 7 times a
// power of two, only the x next to it: where fl(x*k) is the tie, which goes up from 6 and 7 and down from 4
// and 5, a unit in the last place of k decides. `inverse` is 1/k within a rounding.
struct NearTie {
  float x;
  float tie;
  bool above;

  // Whether x*k lies on its side.
  ACCORD_HOST_DEVICE bool right(float k) const {
    const float rest = fmaf(x, k, -tie);
    return above ? rest > 0.0F : rest < 0.0F;
  }
};
ACCORD_HOST_DEVICE inline NearTie near_tie(float k, float inverse, int i) {  // i = 0 to 3
  const float tie = static_cast<float>(4 + i);
  const float x = std::bit_cast<float>((std::bit_cast<uint32_t>(tie * inverse) + 0x8000u) & 0xffff0000u);
  const float product = x * k;
  return {x, tie, product > tie || (product == tie && i >= 2)};
}
// `up`, `down`: near a tie that goes up or down x*k is not on its side. Where both hold or the result is
// again not right, there is no such k.
ACCORD_HOST_DEVICE inline float nudged(float k, bool up, bool down) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(k) + (up ? 1u : 0u) - (down ? 1u : 0u));
}

// From the sums of squared (absolute: of absolute) errors over kElements. u is 1/k, so both sides are taken
// times both k^2 (k), and times what is common to the two weights: weight6 is that of s4's k, weight4 of
// s6's. `same`: the two scales are one.
template <int kElements>
ACCORD_HOST_DEVICE inline Choice choose(float error6, float error4, float weight6, float weight4, bool same,
                                        bool absolute) {
  // 16: L = 2^-17. 256: L = 2^-15.
  constexpr float kSquared = kElements <= 16 ? 0x1p-15F : 0x1p-13F;
  const float relative = absolute ? 0x1p-15F : kSquared;
  const float floor = absolute ? static_cast<float>(kElements) * 0x1p-23F : kSquared * 0x1p-11F;
  const float e6 = weight6 * error6;
  const float difference = fmaf(weight4, error4, -e6);
  const float sum = fmaf(weight4, error4, e6);
  const float margin = fmaf(relative, sum, fmaf(floor, weight4, floor * weight6));
  // Near A both candidates are 448, so one and the same. A NaN is not sure.
  return {difference < 0.0F, (same && error4 == error6) || fabsf(difference) > margin};
}

}  // namespace accord::formats
