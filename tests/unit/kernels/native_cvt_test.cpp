// The rules that the PTX manual gives Blackwell's conversions (kernels/formats/native_cvt.cuh) against the
// contract's casts. No device runs here: the rules are written down once more, by tables of values and
// comparisons in double.
//
// A cast's result depends on sign, exponent, the highest fraction bits (four at most) and on whether any
// lower one is set. The inputs have every sign and exponent with all patterns of eight high bits, and of the
// lower 15 none, one, the middle's neighbours and all.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/formats/element.hpp"
#include "support/catch.hpp"

namespace {

namespace formats = accord::formats;

template <class F>
void for_each_input(F&& visit) {
  constexpr std::array<uint32_t, 6> kLow = {0, 1, 0x3fff, 0x4000, 0x4001, 0x7fff};
  for (uint32_t high = 0; high < 0x20000; ++high) {  // sign, exponent, eight bits
    for (const uint32_t low : kLow) visit(std::bit_cast<float>((high << 15) | low));
  }
}

// cvt.rn.satfinite.{e4m3x2,e5m2x2,e2m1x2}.f32: the nearest of the format's values, of two equally near ones
// that with the even code; beyond the largest, Inf included, the largest; the sign is kept, of a zero too;
// any NaN is the code `nan`.
uint32_t nearest(float x, const float* values, uint32_t count, uint32_t sign, uint32_t nan) {
  if (std::isnan(x)) return nan;
  const double magnitude = std::fabs(static_cast<double>(x));
  uint32_t code = count - 1;
  for (uint32_t i = 0; i + 1 < count; ++i) {
    const double middle = (static_cast<double>(values[i]) + static_cast<double>(values[i + 1])) / 2;
    if (magnitude < middle || (magnitude == middle && i % 2 == 0)) {
      code = i;
      break;
    }
  }
  return std::signbit(x) ? code | sign : code;
}

// cvt.rp.satfinite.ue8m0x2.f32: the least power of two that is not less, from 2^-127 (code 0, of zero too) to
// 2^127 (code 254, of what is larger too); NaN is 255.
uint32_t least_power(float x) {
  if (std::isnan(x)) return 255;
  for (int e = 0; e < 254; ++e) {
    if (static_cast<double>(x) <= std::ldexp(1.0, e - 127)) return static_cast<uint32_t>(e);
  }
  return 254;
}

template <uint32_t kCount>
std::array<float, kCount> values_of(float (*decode)(uint8_t)) {
  std::array<float, kCount> values{};
  for (uint32_t i = 0; i < kCount; ++i) values[i] = decode(static_cast<uint8_t>(i));
  return values;
}

}  // namespace

TEST_CASE("native conversions: e2m1x2 has the contract's codes") {
  constexpr std::array<float, 8> kValues = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  int64_t wrong = 0;
  for_each_input(
      [&](float x) { wrong += nearest(x, kValues.data(), 8, 0x8, 0x7) != formats::to_e2m1(x) ? 1 : 0; });
  CHECK(wrong == 0);
}

TEST_CASE("native conversions: e4m3x2 and e5m2x2 have the contract's codes") {
  const auto e4m3 = values_of<0x7f>(formats::from_e4m3);
  const auto e5m2 = values_of<0x7c>(formats::from_e5m2);
  int64_t wrong = 0;
  for_each_input([&](float x) {
    wrong += nearest(x, e4m3.data(), 0x7f, 0x80, 0x7f) != formats::to_e4m3(x) ? 1 : 0;
    wrong += nearest(x, e5m2.data(), 0x7c, 0x80, 0x7f) != formats::to_e5m2(x) ? 1 : 0;
  });
  CHECK(wrong == 0);
}

TEST_CASE("native conversions: ue8m0x2 has the contract's codes") {
  int64_t wrong = 0;
  for_each_input([&](float x) {
    if (std::signbit(x) && !std::isnan(x)) return;  // a largest magnitude has no sign
    wrong += least_power(x) != formats::to_e8m0_up(x) ? 1 : 0;
  });
  CHECK(wrong == 0);
}

// What the quantizers give the conversions: a product with a NaN, which is positive on the device, and
// products that overflow or vanish with either sign.
TEST_CASE("native conversions: special products need no repair") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0x7fffffffu);
  CHECK(formats::to_e2m1(nan) == 0x7);
  CHECK(formats::to_e2m1(std::bit_cast<float>(0xffffffffu)) == 0x7);
  CHECK(formats::to_e2m1(inf) == 0x7);
  CHECK(formats::to_e2m1(-inf) == 0xf);
  CHECK(formats::to_e2m1(-0.0F) == 0x8);
  CHECK(formats::to_e2m1(-0x1p-149F) == 0x8);
  CHECK(formats::to_e8m0_up(inf) == 0xfe);
  CHECK(formats::to_e8m0_up(0.0F) == 0);
  CHECK(formats::to_e8m0_up(0x1p-149F) == 0);
}
