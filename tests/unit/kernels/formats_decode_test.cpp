#include <bit>

#include "base/philox.hpp"
#include "formats_inputs.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "support/catch.hpp"

namespace {

using namespace accord::formats;
using formats_inputs::count_different;
using formats_model::Format;

float product(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}

std::vector<uint8_t> random_bytes(int64_t n, uint64_t seed) {
  accord::PhiloxStream random(seed, 3);
  std::vector<uint8_t> out;
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<uint8_t>(random.next_u32()));
  }
  return out;
}

uint8_t nibble(const std::vector<uint8_t>& q, int64_t i) {
  return static_cast<uint8_t>((q[static_cast<size_t>(i / 2)] >> (i % 2 * 4)) & 0xf);
}

}  // namespace

TEST_CASE("formats: MXFP8 rows decode every code under every scale") {
  for (Element element : {Element::kE4M3, Element::kE5M2}) {
    const Format format = element == Element::kE4M3 ? Format::kE4M3 : Format::kE5M2;
    std::vector<uint8_t> q;
    std::vector<uint8_t> scale;
    std::vector<float> want;
    for (int e = 0; e < 256; ++e) {
      for (int code = 0; code < 256; ++code) {
        if (code % 32 == 0) {
          scale.push_back(static_cast<uint8_t>(e));
        }
        q.push_back(static_cast<uint8_t>(code));
        want.push_back(product(formats_model::decode(format, q.back()), formats_model::e8m0(scale.back())));
      }
    }
    std::vector<float> got(q.size());
    decode_mxfp8_row(q.data(), scale.data(), static_cast<int64_t>(q.size()), got.data(), element);
    CHECK(count_different(got, want) == 0);
    // A range of the row, from its third block on.
    std::vector<float> part(32);
    decode_mxfp8_row(q.data() + 96, scale.data() + 3, 32, part.data(), element);
    CHECK(count_different(part, std::vector<float>(want.begin() + 96, want.begin() + 128)) == 0);
  }
}

TEST_CASE("formats: NVFP4 rows decode every code under every scale") {
  for (int64_t k : {16, 32, 48, 16 * 1025}) {
    const std::vector<uint8_t> q = random_bytes(k / 2, 31);
    std::vector<uint8_t> scale;
    for (int64_t i = 0; i < k / 16; ++i) {
      scale.push_back(static_cast<uint8_t>(i * 3 + 0x38));
    }
    for (int range : {448, 256}) {
      const float inverse = std::bit_cast<float>(range == 448 ? 0x39c30c31u : 0x3a2aaaabu);
      const float amax = 3.7F;
      std::vector<float> want_products;
      std::vector<float> want;
      for (int64_t i = 0; i < k; ++i) {
        const float value = formats_model::decode(Format::kE2M1, nibble(q, i));
        const float s = formats_model::decode(Format::kE4M3, scale[static_cast<size_t>(i / 16)]);
        want_products.push_back(product(value, s));
        want.push_back(product(value, product(product(s, amax), inverse)));
      }
      std::vector<float> got(static_cast<size_t>(k));
      decode_nvfp4_products_row(q.data(), scale.data(), k, got.data());
      CHECK(count_different(got, want_products) == 0);
      decode_nvfp4_row(q.data(), scale.data(), amax, range, k, got.data());
      CHECK(count_different(got, want) == 0);
    }
  }
}

TEST_CASE("formats: NVFP4 products are exact in BF16") {
  for (int code = 0; code < 16; ++code) {
    for (int s = 0; s < 256; ++s) {
      if ((s & 0x7f) != 0x7f) {
        const float value = from_e2m1(static_cast<uint8_t>(code)) * from_e4m3(static_cast<uint8_t>(s));
        CHECK(accord::to_float(accord::to_bf16(value)) == value);
      }
    }
  }
}

TEST_CASE("formats: BF16 rows decode every value") {
  std::vector<accord::BF16> x;
  std::vector<float> want;
  for (uint32_t bits = 0; bits < 0x10000 - 3; ++bits) {  // an odd length
    x.push_back({static_cast<uint16_t>(bits)});
    want.push_back(std::bit_cast<float>(bits << 16));
  }
  std::vector<float> got(x.size());
  decode_bf16_row(x.data(), static_cast<int64_t>(x.size()), got.data());
  CHECK(count_different(got, want) == 0);
}
