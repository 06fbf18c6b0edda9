#include <bit>
#include <cmath>

#include "base/dtype.hpp"
#include "formats_model.hpp"
#include "kernels/formats/element.hpp"
#include "support/catch.hpp"

namespace {

using formats_model::Format;
namespace formats = accord::formats;

uint8_t library_cast(Format format, float x) {
  switch (format) {
    case Format::kE4M3:
      return formats::to_e4m3(x);
    case Format::kE5M2:
      return formats::to_e5m2(x);
    case Format::kE2M1:
      return formats::to_e2m1(x);
  }
  return 0;
}

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// Casts that differ from the model, over all bf16 patterns.
int64_t wrong_bf16(Format format) {
  int64_t wrong = 0;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    const float x = from_bits(high << 16);
    wrong += library_cast(format, x) != formats_model::cast(format, x) ? 1 : 0;
  }
  return wrong;
}

// The same over every value, every midpoint, and the fp32 neighbours of both.
int64_t wrong_boundaries(Format format, int max_code) {
  int64_t wrong = 0;
  for (int code = 0; code <= max_code + 1; ++code) {
    const double here = formats_model::value(format, code);
    const double next = formats_model::value(format, code + 1);
    for (double point : {here, (here + next) / 2}) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(point));
      for (uint32_t offset = 0; offset < 5; ++offset) {
        const uint32_t magnitude = bits + offset < 2 ? 0 : bits + offset - 2;
        for (uint32_t sign : {0u, 0x80000000u}) {
          const float x = from_bits(magnitude | sign);
          wrong += library_cast(format, x) != formats_model::cast(format, x) ? 1 : 0;
        }
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("formats: casts of every bf16 value match the model") {
  CHECK(wrong_bf16(Format::kE4M3) == 0);
  CHECK(wrong_bf16(Format::kE5M2) == 0);
  CHECK(wrong_bf16(Format::kE2M1) == 0);
}

TEST_CASE("formats: casts at values, midpoints and their fp32 neighbours match the model") {
  CHECK(wrong_boundaries(Format::kE4M3, 0x7e) == 0);
  CHECK(wrong_boundaries(Format::kE5M2, 0x7b) == 0);
  CHECK(wrong_boundaries(Format::kE2M1, 0x7) == 0);
}

TEST_CASE("formats: special inputs of the casts") {
  const float inf = from_bits(0x7f800000);
  for (uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0xffffffffu}) {
    CHECK(formats::to_e4m3(from_bits(nan)) == 0x7f);
    CHECK(formats::to_e5m2(from_bits(nan)) == 0x7f);
    CHECK(formats::to_e2m1(from_bits(nan)) == 0x7);
  }
  CHECK(formats::to_e8m0_up(from_bits(0x7fc00000)) == 0xff);
  CHECK(formats::to_e8m0_up(inf) == 0xfe);
  CHECK(formats::to_e4m3(inf) == 0x7e);
  CHECK(formats::to_e4m3(-inf) == 0xfe);
  CHECK(formats::to_e5m2(-inf) == 0xfb);
  CHECK(formats::to_e2m1(-inf) == 0xf);
  CHECK(formats::to_e4m3(-0.0F) == 0x80);
  CHECK(formats::to_e5m2(-0.0F) == 0x80);
  CHECK(formats::to_e2m1(-0.0F) == 0x8);
  CHECK(formats::to_e4m3(-1e-30F) == 0x80);
  CHECK(formats::to_e2m1(-0.25F) == 0x8);
  // The ties that the contract lists.
  const float ties[] = {.25F, .75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const float rounded[] = {0.0F, 1.0F, 1.0F, 2.0F, 2.0F, 4.0F, 4.0F};
  for (int i = 0; i < 7; ++i) {
    CHECK(formats::from_e2m1(formats::to_e2m1(ties[i])) == rounded[i]);
    CHECK(formats::from_e2m1(formats::to_e2m1(-ties[i])) == -rounded[i]);
  }
}

TEST_CASE("formats: E8M0 rounds up at every power of two") {
  int64_t wrong = 0;
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (uint32_t mantissa : {0u, 1u, 2u, 0x3fffffu, 0x400000u, 0x400001u, 0x555555u, 0x7ffffeu, 0x7fffffu}) {
      const float x = from_bits((exponent << 23) | mantissa);
      wrong += formats::to_e8m0_up(x) != formats_model::e8m0_up(x) ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("formats: decoded codes match the model and cast back to themselves") {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    CAPTURE(i);
    const auto same = [](float a, float b) {
      return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    };
    CHECK(same(formats::from_e4m3(code), formats_model::decode(Format::kE4M3, code)));
    CHECK(same(formats::from_e5m2(code), formats_model::decode(Format::kE5M2, code)));
    CHECK(same(formats::from_e8m0(code), formats_model::e8m0(code)));
    CHECK(same(formats::e4m3_table()[i], formats::from_e4m3(code)));
    CHECK(same(formats::e8m0_table()[i], formats::from_e8m0(code)));
    if ((code & 0x7f) != 0x7f) {
      CHECK(formats::to_e4m3(formats::from_e4m3(code)) == code);
    }
    if ((code & 0x7f) < 0x7c) {
      CHECK(formats::to_e5m2(formats::from_e5m2(code)) == code);
    }
    if (i < 16) {
      CHECK(same(formats::from_e2m1(code), formats_model::decode(Format::kE2M1, code)));
      CHECK(formats::to_e2m1(formats::from_e2m1(code)) == code);
    }
    if (code != 255) {
      CHECK(formats::to_e8m0_up(formats::from_e8m0(code)) == code);
    }
  }
}
