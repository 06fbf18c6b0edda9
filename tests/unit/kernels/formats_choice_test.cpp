#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/formats/element_decode.hpp"
#include "kernels/formats/nvfp4_choice.hpp"
#include "kernels/formats/nvfp4_tile.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::formats;

namespace {

struct Counts {
  int64_t wrong = 0;
  int64_t wrong_codes = 0;
  int64_t unsure = 0;
  int64_t blocks = 0;
};

// The short rule on a block, against the contract's own arithmetic.
template <int kRows>
void compare(const float (&values)[kRows * 16], const OuterScale& outer, FourOverSix mode, Counts& counts) {
  float amax = 0.0F;
  for (const float v : values) amax = std::max(amax, std::fabs(v));
  const float base = divide_by_six(amax) * outer.s;
  const auto scale_of = [](float b) { return to_e4m3(std::min(b, 448.0F)); };
  const uint8_t code6 = scale_of(base);
  const uint8_t code4 = scale_of(base * 1.5F);
  const bool absolute = mode == FourOverSix::kMae;
  float error[2] = {};
  int64_t wrong_codes = 0;
  for (int candidate = 0; candidate < 2; ++candidate) {
    const float k = nvfp4_multiplier(candidate == 0 ? code6 : code4, outer);
    for (const float v : values) {
      const TriedE2M1 tried = try_e2m1(v, k * 0x1p-6F);
      error[candidate] = absolute ? error[candidate] + std::fabs(tried.error)
                                  : std::fma(tried.error, tried.error, error[candidate]);
      wrong_codes += to_e4m3(tried.value) != (to_e2m1(v * k) & 7) * 4 ? 1 : 0;
    }
  }
  ++counts.blocks;
  const float s6 = decode_e4m3(code6);
  if (!is_ordinary_scope(outer.amax) || !is_ordinary(base, s6)) {
    ++counts.unsure;
    return;
  }
  counts.wrong_codes += wrong_codes;
  const Choice choice = choose<kRows * 16>(error[0], error[1], s6, decode_e4m3(code4), absolute);
  if (!choice.sure) {
    ++counts.unsure;
    return;
  }
  const uint8_t expected = nvfp4_block_scale(values, kRows, amax, outer, mode);
  counts.wrong += (choice.four ? code4 : code6) != expected ? 1 : 0;
}

template <int kRows>
Counts over_blocks(int count, bool coarse) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  Counts counts;
  for (int i = 0; i < count; ++i) {
    float values[kRows * 16];
    float largest = 0.0F;
    const float scale = std::ldexp(1.0F, static_cast<int>(random() % 125) - 60);
    for (float& v : values) {
      // Coarse: few magnitudes, so that ties of the grid and equal errors happen.
      v = coarse ? static_cast<float>(static_cast<int>(random() % 25) - 12) * scale
                 : to_float(to_bf16(normal(random) * scale));
      if (random() % 997 == 0) v = -0.0F;
      largest = std::max(largest, std::fabs(v));
    }
    const float outer_amax = largest * (coarse ? static_cast<float>(random() % 4 + 1)
                                               : std::exp2(static_cast<float>(random() % 1500) / 100.0F));
    for (const int range : {448, 256}) {
      for (const FourOverSix mode : {FourOverSix::kMse, FourOverSix::kMae}) {
        compare<kRows>(values, make_outer_scale(outer_amax, range), mode, counts);
      }
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("formats: the short rule of four over six decides as the contract where it decides") {
  const Counts counts = over_blocks<1>(100000, false);
  CHECK(counts.wrong == 0);
  CHECK(counts.wrong_codes == 0);
  CHECK(counts.unsure < counts.blocks / 3);  // among them those of scales far from 1
  const Counts coarse = over_blocks<1>(50000, true);
  CHECK(coarse.wrong == 0);
  CHECK(coarse.wrong_codes == 0);
  CHECK(coarse.unsure > 0);
  for (const bool few : {false, true}) {
    const Counts tiles = over_blocks<16>(5000, few);
    CHECK(tiles.wrong == 0);
    CHECK(tiles.wrong_codes == 0);
    CHECK(tiles.unsure < tiles.blocks / 2);
  }
}

TEST_CASE("formats: the short rule decides the blocks near the largest value where both candidates are 448") {
  std::mt19937 random(29);
  std::normal_distribution<float> normal;
  for (const FourOverSix mode : {FourOverSix::kMse, FourOverSix::kMae}) {
    Counts counts;
    for (int i = 0; i < 20000; ++i) {
      float values[16];
      float largest = 0.0F;
      for (float& v : values) {
        v = normal(random);
        largest = std::max(largest, std::fabs(v));
      }
      // The block of A itself, whose b may round above 448, and blocks down to where s6 is still 448.
      const float outer_amax =
          i % 2 == 0 ? largest : largest * (1.0F + static_cast<float>(i % 64) * 0x1p-11F);
      compare<1>(values, make_outer_scale(outer_amax, 448), mode, counts);
    }
    CHECK(counts.wrong == 0);
    CHECK(counts.wrong_codes == 0);
    CHECK(counts.unsure == 0);
  }
}

TEST_CASE("formats: the short rule leaves a block with a NaN or an Inf or a tiny scale undecided") {
  for (const float special : {std::nanf(""), INFINITY, 1e-30F}) {
    float values[16] = {1.0F, 0.5F, -0.25F};
    if (special == 1e-30F) {
      std::fill_n(values, 3, special);
    } else {
      values[7] = special;
    }
    // In the second scope both candidates are 448.
    for (const float outer_amax : {1.0F, 1.01F}) {
      Counts counts;
      compare<1>(values, make_outer_scale(outer_amax, 448), FourOverSix::kMse, counts);
      CHECK(counts.unsure == 1);
    }
  }
}
