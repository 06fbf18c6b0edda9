#pragma once
// Element formats, one value at a time (docs/contract.md, section 1). Exact for every fp32 input; rounding
// is to nearest even and saturating, except E8M0, which rounds toward +Inf. Integer arithmetic only, so the
// floating-point environment does not matter.
//
//   E4M3  1-4-3, bias 7, max 448.   0x7F and 0xFF are NaN, there is no Inf.
//   E5M2  1-5-2, max 57344.         0x7C is Inf (decoded, never produced).
//   E2M1  0 .5 1 1.5 2 3 4 6        in the low nibble; no NaN, no Inf: a NaN becomes 0x7, that is +6.
//   E8M0  2^(e-127), 255 is NaN.
#include <cstdint>

namespace accord::formats {

// The two 8-bit floating-point elements of MXFP8.
enum class Element : uint8_t { kE4M3, kE5M2 };

constexpr float kE4M3Max = 448.0F;
constexpr float kE5M2Max = 57344.0F;
constexpr float kE2M1Max = 6.0F;

// NaN of either sign gives 0x7F (E4M3, E5M2) or 0x7 (E2M1); Inf and overflow the largest finite value. Every
// other result keeps the sign of its input, also when it rounds to zero.
uint8_t to_e4m3(float x);
uint8_t to_e5m2(float x);
uint8_t to_e2m1(float x);
uint8_t to_element(float x, Element element);

// The smallest power of two that is not below x, for x >= +0; clamped to [2^-127, 2^127]. NaN gives 0xFF.
uint8_t to_e8m0_up(float x);

float from_e4m3(uint8_t code);
float from_e5m2(uint8_t code);
float from_e2m1(uint8_t code);  // the low nibble
float from_e8m0(uint8_t code);  // 0 is 2^-127, a subnormal
float from_element(uint8_t code, Element element);

// The 256 values of from_e4m3 and from_e8m0, for inner loops.
const float* e4m3_table();
const float* e8m0_table();

}  // namespace accord::formats
