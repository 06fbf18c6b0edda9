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

// A multiplier for scales of one significand, nudged where `valid`.
struct NudgedMultiplier {
  float value;
  bool valid;
};
NudgedMultiplier nudge(float k, float inverse) {
  bool up = false;
  bool down = false;
  for (int i = 0; i < 4; ++i) {
    const NearTie near = near_tie(k, inverse, i);
    up = up || (!near.right(k) && near.above);
    down = down || (!near.right(k) && !near.above);
  }
  const float nudged_k = nudged(k, up, down);
  bool valid = true;
  for (int i = 0; i < 4; ++i) valid = valid && near_tie(k, inverse, i).right(nudged_k);
  return {nudged_k, valid};
}

// The offset of try_e2m1<true> as a device makes it of bf16, times `spread`.
float offset_of(float magnitude, float multiplier, float spread) {
  const auto bf16 = [](double v) { return to_float(to_bf16(static_cast<float>(v))); };
  const double square = bf16(static_cast<double>(multiplier) * 0x1p25 * static_cast<double>(multiplier));
  return bf16(static_cast<double>(bf16(static_cast<double>(magnitude) * static_cast<double>(magnitude))) *
                  square +
              static_cast<double>(kPowerOffset) * 0x1p25) *
         spread;
}

// The short rule on a block, against the contract's own arithmetic. `use_nudged`: with nudged multipliers
// where there are, which takes bf16.
template <int kRows>
void compare(const float (&values)[kRows * 16], const OuterScale& outer, FourOverSix mode, bool use_nudged,
             Counts& counts) {
  float amax = 0.0F;
  for (const float v : values) amax = std::max(amax, std::fabs(v));
  const float base = divide_by_six(amax) * outer.s;
  const auto scale_of = [](float b) { return to_e4m3(std::min(b, 448.0F)); };
  const uint8_t codes[2] = {scale_of(base), scale_of(base * 1.5F)};
  const bool absolute = mode == FourOverSix::kMae;
  float error[2] = {};
  float weight[2] = {};
  int64_t wrong_codes = 0;
  for (int candidate = 0; candidate < 2; ++candidate) {
    const float k = nvfp4_multiplier(codes[candidate], outer);
    const NudgedMultiplier other = nudge(k, decode_e4m3(codes[candidate]) * outer.inverse);
    const bool is_nudged = use_nudged && other.valid && codes[candidate] >= 8;
    const float multiplier = (is_nudged ? other.value : k) * 0x1p-6F;
    weight[candidate] = absolute ? multiplier : (multiplier * 0x1p25F) * multiplier;
    for (const float v : values) {
      const float magnitude = std::fabs(v);
      const TriedE2M1 tried =
          is_nudged ? try_e2m1<true>(magnitude, multiplier, offset_of(magnitude, multiplier, 1.0F))
                    : try_e2m1(v, multiplier);
      error[candidate] = absolute ? error[candidate] + std::fabs(tried.error)
                                  : std::fma(tried.error, tried.error, error[candidate]);
      wrong_codes += to_e4m3(tried.value) != (to_e2m1(v * k) & 7) * 4 ? 1 : 0;
    }
  }
  ++counts.blocks;
  if (!is_ordinary_scope(outer.amax) || !is_ordinary(base, codes[0])) {
    ++counts.unsure;
    return;
  }
  counts.wrong_codes += wrong_codes;
  const Choice choice =
      choose<kRows * 16>(error[0], error[1], weight[1], weight[0], codes[0] == codes[1], absolute);
  if (!choice.sure) {
    ++counts.unsure;
    return;
  }
  const uint8_t expected = nvfp4_block_scale(values, kRows, amax, outer, mode);
  counts.wrong += (choice.four ? codes[1] : codes[0]) != expected ? 1 : 0;
}

template <int kRows>
Counts over_blocks(int count, bool coarse) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  Counts counts;
  for (int i = 0; i < count; ++i) {
    float values[kRows * 16];
    float largest = 0.0F;
    const float scale = std::ldexp(1.0F, static_cast<int>(random() % 99) - 48);
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
        compare<kRows>(values, make_outer_scale(outer_amax, range), mode, i % 2 == 0, counts);
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
      compare<1>(values, make_outer_scale(outer_amax, 448), mode, false, counts);
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
      compare<1>(values, make_outer_scale(outer_amax, 448), FourOverSix::kMse, false, counts);
      CHECK(counts.unsure == 1);
    }
  }
}

TEST_CASE("formats: one rounding with a nudged multiplier gives the codes of every bf16") {
  std::mt19937 random(31);
  int64_t wrong = 0;
  int64_t invalid = 0;
  int64_t moved = 0;
  constexpr int kScopes = 1500;
  for (int n = 0; n < kScopes; ++n) {
    // Values of bf16, which makes exact ties, and of fp32; small integers among them.
    float amax =
        std::ldexp(1.0F + static_cast<float>(random() % 128) / 128.0F, static_cast<int>(random() % 8));
    if (n % 3 == 1) amax *= 1.0F + static_cast<float>(random() % 65536) * 0x1p-23F;
    if (n % 3 == 2) amax = static_cast<float>(random() % 100 + 1);
    const OuterScale outer = make_outer_scale(amax, n % 2 == 0 ? 448 : 256);
    for (uint8_t significand = 0; significand < 8; ++significand) {
      const auto code = static_cast<uint8_t>(56 + significand);
      const float k = nvfp4_multiplier(code, outer);
      const NudgedMultiplier other = nudge(k, decode_e4m3(code) * outer.inverse);
      moved += other.value != k ? 1 : 0;
      if (!other.valid) {
        ++invalid;
        continue;
      }
      const float multiplier = other.value * 0x1p-6F;
      const int exponent = std::ilogb(6.4F / k);
      for (int m = 0; m < 128 * 8; ++m) {
        const float x = std::ldexp(1.0F + static_cast<float>(m % 128) / 128.0F, exponent - m / 128);
        if (x * k >= 6.4F) continue;
        // The lower half of the upper value's offset is another value's.
        for (const float spread : {1.0F, 1.0F + 0x1.234p-9F, 1.0F + 0x1.fffcp-9F}) {
          const TriedE2M1 tried = try_e2m1<true>(x, multiplier, offset_of(x, multiplier, spread));
          wrong += to_e4m3(tried.value) != (to_e2m1(x * k) & 7) * 4 ? 1 : 0;
        }
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(moved > kScopes / 10);
  // Where ties that go up and down fall on the same k: A a small integer, or of bf16 and a multiple of 3
  // or 7.
  CHECK(invalid > 0);
  CHECK(invalid < kScopes * 8 / 5);
}
