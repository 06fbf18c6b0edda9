#include "kernels/formats/element.hpp"

#include <array>
#include <bit>

#include "kernels/formats/element_decode.hpp"

namespace accord::formats {
namespace {

// Rounds the fp32 magnitude `bits` (not NaN) to the nearest value with kMantissa fraction bits, exponents
// from kMinExponent up and gradual underflow below, ties to even. The result is the format's code without
// sign; it may exceed the largest finite code, which the caller clamps.
template <int kMantissa, int kMinExponent>
constexpr uint32_t round_magnitude(uint32_t bits) {
  constexpr int kBase = 23 - kMantissa;
  constexpr int kMinField = 127 + kMinExponent;
  const int field = static_cast<int>(bits >> 23);
  // Exponent field and significand of the result's binade; all below the smallest normal share one grid.
  uint32_t significand = (bits & 0x7fffffu) | (field == 0 ? 0u : 0x800000u);
  const int exponent = field == 0 ? 1 : field;
  int shift = kBase;
  uint32_t binade = 0;
  if (exponent < kMinField) {
    shift += kMinField - exponent;
    if (shift > 25) {
      return 0;  // below half of the smallest subnormal
    }
  } else {
    binade = static_cast<uint32_t>(exponent - kMinField);
  }
  const uint32_t half = 1u << (shift - 1);
  const uint32_t kept = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1);
  const uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u);
  return (binade << kMantissa) + rounded;
}

template <int kMantissa, int kMinExponent>
constexpr uint8_t cast(float x, uint32_t nan_code, uint32_t max_code, uint32_t sign_code) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kInfBits) {
    return static_cast<uint8_t>(nan_code);
  }
  const uint32_t code = round_magnitude<kMantissa, kMinExponent>(magnitude);
  const uint32_t sign = (bits >> 31) ? sign_code : 0u;
  return static_cast<uint8_t>((code < max_code ? code : max_code) | sign);
}

template <float (*decode)(uint32_t)>
constexpr std::array<float, 256> make_table() {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 256; ++code) {
    table[code] = decode(code);
  }
  return table;
}

constexpr std::array<float, 256> kE4M3Table = make_table<decode_e4m3>();
constexpr std::array<float, 256> kE8M0Table = make_table<decode_e8m0>();
constexpr std::array<float, 16> kE2M1Table = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                              -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

}  // namespace

uint8_t to_e4m3(float x) { return cast<3, -6>(x, 0x7f, 0x7e, 0x80); }
uint8_t to_e5m2(float x) { return cast<2, -14>(x, 0x7f, 0x7b, 0x80); }
uint8_t to_e2m1(float x) { return cast<1, 0>(x, 0x7, 0x7, 0x8); }

uint8_t to_element(float x, Element element) { return element == Element::kE4M3 ? to_e4m3(x) : to_e5m2(x); }

uint8_t to_e8m0_up(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > kInfBits) {
    return 0xff;
  }
  if (bits == kInfBits) {
    return 0xfe;
  }
  const uint32_t exponent = bits >> 23;
  const uint32_t mantissa = bits & 0x7fffffu;
  const bool up = mantissa > 0 && exponent != 0xfe && !(exponent == 0 && mantissa <= 0x400000u);
  return static_cast<uint8_t>(exponent + (up ? 1u : 0u));
}

float from_e4m3(uint8_t code) { return kE4M3Table[code]; }

float from_e5m2(uint8_t code) { return decode_e5m2(code); }
float from_e2m1(uint8_t code) { return kE2M1Table[code & 0xfu]; }
float from_e8m0(uint8_t code) { return kE8M0Table[code]; }

float from_element(uint8_t code, Element element) {
  return element == Element::kE4M3 ? from_e4m3(code) : from_e5m2(code);
}

const float* e4m3_table() { return kE4M3Table.data(); }
const float* e8m0_table() { return kE8M0Table.data(); }

}  // namespace accord::formats
