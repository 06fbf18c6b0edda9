// Weights in fragment order: the same bits in other places, and the places that the header promises.
#include "kernels/gemm/fragments.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/philox.hpp"
#include "kernels/gemm/fragment_words.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::kernels;

namespace {

struct Weight {
  WeightFormat format;
  int64_t n, k;
  std::vector<uint8_t> q, scales;

  Weight(WeightFormat f, int64_t rows, int64_t cols)
      : format(f),
        n(rows),
        k(cols),
        q(static_cast<size_t>(f == WeightFormat::kNVFP4 ? n * k / 2 : n * k)),
        scales(static_cast<size_t>(n * k / (f == WeightFormat::kNVFP4 ? 16 : 32))) {
    PhiloxStream random(5, static_cast<uint64_t>(n * k));
    for (uint8_t& x : q) x = static_cast<uint8_t>(random.next_below(256));
    for (uint8_t& x : scales) x = static_cast<uint8_t>(random.next_below(256));
  }
  std::vector<uint8_t> fragments() const {
    std::vector<uint8_t> out(static_cast<size_t>(fragments_bytes(format, n, k)));
    to_fragments(format, n, k, q.data(), scales.data(), out.data());
    return out;
  }
  uint32_t code(int64_t row, int64_t at) const {
    const auto i = static_cast<size_t>(row * k + at);
    return format == WeightFormat::kNVFP4 ? (q[i / 2] >> (i % 2 * 4)) & 0xfU : q[i];
  }
};

uint32_t load_word(const uint8_t* from) {
  uint32_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
// Sign, exponent and mantissa where bf16 has their lowest: codes of 4 and 8 bits.
uint32_t e2m1_bits(uint32_t code) { return (code & 8U) << 12 | (code & 7U) << 6; }
uint32_t e4m3_bits(uint32_t code) { return (code & 0x80U) << 8 | (code & 0x7fU) << 4; }

const std::pair<int64_t, int64_t> kShapes[] = {{16, 256}, {48, 768}, {64, 2048}};

}  // namespace

TEST_CASE("fragments and back are the same bytes") {
  for (const WeightFormat format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    for (const auto& [n, k] : kShapes) {
      const Weight w(format, n, k);
      REQUIRE(takes_fragments(format, n, k));
      const std::vector<uint8_t> fragments = w.fragments();
      CHECK(fragments.size() == w.q.size() + w.scales.size());
      Weight back(format, n, k);
      std::fill(back.q.begin(), back.q.end(), uint8_t{0});
      std::fill(back.scales.begin(), back.scales.end(), uint8_t{0});
      from_fragments(format, n, k, fragments.data(), back.q.data(), back.scales.data());
      CHECK(back.q == w.q);
      CHECK(back.scales == w.scales);
    }
  }
}

TEST_CASE("every code is found wherever it lies in a word") {
  for (uint32_t first = 0; first < 16; ++first) {
    for (int at = 0; at < 8; ++at) {
      for (const uint32_t others : {0U, 0xffffffffU}) {
        const uint32_t codes = (others & ~(0xfU << at * 4)) | first << at * 4;
        uint32_t bits[4];
        nvfp4_fragment_bits(nvfp4_fragment_word(codes & 0xffffU, codes >> 16), bits);
        uint32_t found = 0;
        for (int i = 0; i < 8; ++i) {
          // Code i of row g, or i - 4 of row g + 8.
          const uint32_t half = bits[i / 4 + i % 4 / 2 * 2] >> (i % 2 * 16) & 0xffffU;
          CHECK((half & ~0x81c0U) == 0);
          found |= ((half >> 12 & 8U) | (half >> 6 & 7U)) << i * 4;
        }
        CHECK(found == codes);
      }
    }
  }
  for (uint32_t first = 0; first < 256; ++first) {
    for (int at = 0; at < 4; ++at) {
      for (const uint32_t others : {0U, 0xffffffffU}) {
        const uint32_t codes = (others & ~(0xffU << at * 8)) | first << at * 8;
        uint32_t bits[2];
        mxfp8_fragment_bits(mxfp8_fragment_word(codes), bits);
        for (int i = 0; i < 4; ++i) {
          CHECK((bits[i / 2] >> (i % 2 * 16) & 0xffffU) == e4m3_bits(codes >> i * 8 & 0xffU));
        }
      }
    }
  }
}

TEST_CASE("a lane finds its NVFP4 codes and scales where the order says") {
  const Weight w(WeightFormat::kNVFP4, 32, 512);
  const std::vector<uint8_t> fragments = w.fragments();
  constexpr int64_t kRecord = 2304;
  REQUIRE(fragment_record_bytes(w.format) == kRecord);
  // Record of rows 16 to 31 and values 256 to 511, part 2, lane 4 * 3 + 1, group 1.
  const uint8_t* record = fragments.data() + 3 * kRecord;
  const uint8_t* word = record + 2 * 512 + 13 * 16 + 1 * 4;
  const int64_t k0 = 256 + 2 * 64 + 16 + 4;
  const int64_t row = 16 + 3;
  const uint32_t c[4] = {w.code(row, k0), w.code(row, k0 + 1), w.code(row, k0 + 2), w.code(row, k0 + 3)};
  const uint32_t d[4] = {w.code(row + 8, k0), w.code(row + 8, k0 + 1), w.code(row + 8, k0 + 2),
                         w.code(row + 8, k0 + 3)};
  uint32_t bits[4];
  nvfp4_fragment_bits(load_word(word), bits);
  CHECK(bits[0] == (e2m1_bits(c[0]) | e2m1_bits(c[1]) << 16));
  CHECK(bits[1] == (e2m1_bits(d[0]) | e2m1_bits(d[1]) << 16));
  CHECK(bits[2] == (e2m1_bits(c[2]) | e2m1_bits(c[3]) << 16));
  CHECK(bits[3] == (e2m1_bits(d[2]) | e2m1_bits(d[3]) << 16));
  // Scales of rows 19 and 27, quarter 1: groups 4 to 7 of the record.
  const uint8_t* scales = record + 2048 + 8 * (8 * 1 + 3);
  const auto scale = [&](int64_t r, int64_t group) {
    return w.scales[static_cast<size_t>(r * 32 + 16 + group)];
  };
  const std::vector<uint8_t> expected = {scale(19, 4), scale(19, 5), scale(27, 4), scale(27, 5),
                                         scale(19, 6), scale(19, 7), scale(27, 6), scale(27, 7)};
  CHECK(std::vector<uint8_t>(scales, scales + 8) == expected);
}

TEST_CASE("a lane finds its MXFP8 codes and scales where the order says") {
  const Weight w(WeightFormat::kMXFP8, 16, 256);
  const std::vector<uint8_t> fragments = w.fragments();
  constexpr int64_t kRecord = 2112;
  REQUIRE(fragment_record_bytes(w.format) == kRecord);
  // Values 128 to 255, part 3, lane 4 * 7 + 2, group 1.
  const uint8_t* record = fragments.data() + kRecord;
  const uint8_t* words = record + 3 * 512 + 30 * 16 + 8;
  const int64_t k0 = 128 + 3 * 32 + 16 + 8;
  for (const int64_t half : {0, 1}) {
    const auto code = [&](int64_t i) { return e4m3_bits(w.code(7 + half * 8, k0 + i)); };
    uint32_t bits[2];
    mxfp8_fragment_bits(load_word(words + half * 4), bits);
    CHECK(bits[0] == (code(0) | code(1) << 16));
    CHECK(bits[1] == (code(2) | code(3) << 16));
  }
  const uint8_t* scales = record + 2048 + 8 * 7;
  const auto scale = [&](int64_t r, int64_t i) { return w.scales[static_cast<size_t>(r * 8 + 4 + i)]; };
  CHECK(std::vector<uint8_t>(scales, scales + 8) ==
        std::vector<uint8_t>{scale(7, 0), scale(7, 1), scale(7, 2), scale(7, 3), scale(15, 0), scale(15, 1),
                             scale(15, 2), scale(15, 3)});
}

TEST_CASE("only whole records have a fragment order") {
  CHECK_FALSE(takes_fragments(WeightFormat::kBF16, 16, 256));
  CHECK_FALSE(takes_fragments(WeightFormat::kNVFP4, 16, 128));
  CHECK_FALSE(takes_fragments(WeightFormat::kNVFP4, 24, 256));
  CHECK(takes_fragments(WeightFormat::kMXFP8, 16, 128));
  CHECK_FALSE(takes_fragments(WeightFormat::kMXFP8, 16, 192));
}
