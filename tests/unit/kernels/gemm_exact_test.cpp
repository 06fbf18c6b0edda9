#include <bit>
#include <cmath>
#include <limits>

#include "base/philox.hpp"
#include "kernels/gemm/exact.hpp"
#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// significand * 2^exponent, not normalized.
struct Parts {
  int64_t significand;
  int exponent;  // of the binade: the value is significand * 2^(exponent - fraction)
};

Parts parts_of(uint32_t bits, int exponent_bits_at, int fraction_bits) {
  const auto field = static_cast<int>((bits >> exponent_bits_at) & 0xffu);
  auto significand = static_cast<int64_t>(bits & ((1u << fraction_bits) - 1));
  if (field != 0) significand |= int64_t{1} << fraction_bits;
  const bool negative = (bits >> (exponent_bits_at + 8)) & 1u;
  return {negative ? -significand : significand, std::max(field, 1) - 127};
}

__int128 shift_to_zero(int64_t x, int left) {
  if (left >= 0) return static_cast<__int128>(x) << left;
  const __int128 magnitude = left < -64 ? 0 : static_cast<__int128>(x < 0 ? -x : x) >> -left;
  return x < 0 ? -magnitude : magnitude;
}

// The documented step in integers, finite operands.
float naive_step(const BF16* a, const BF16* b, float acc) {
  const Parts c = parts_of(std::bit_cast<uint32_t>(acc), 23, 23);
  int top = c.significand == 0 ? -133 : c.exponent;
  for (int i = 0; i < 16; ++i) {
    const Parts x = parts_of(a[i].bits, 7, 7);
    const Parts y = parts_of(b[i].bits, 7, 7);
    if (x.significand != 0 && y.significand != 0) top = std::max(top, x.exponent + y.exponent);
  }
  __int128 sum = shift_to_zero(c.significand, c.exponent - 23 - (top - 25));
  for (int i = 0; i < 16; ++i) {
    const Parts x = parts_of(a[i].bits, 7, 7);
    const Parts y = parts_of(b[i].bits, 7, 7);
    sum += shift_to_zero(x.significand * y.significand, x.exponent + y.exponent - 14 - (top - 25));
  }
  const bool negative = sum < 0;
  auto magnitude = static_cast<uint64_t>(negative ? -sum : sum);
  if (magnitude == 0) return 0.0F;
  int exponent = top - 25;  // of the last bit
  int drop = std::bit_width(magnitude) - 24;
  drop = std::max(drop, -149 - exponent);  // subnormal results keep fewer bits
  if (drop > 0) {
    magnitude = drop > 63 ? 0 : magnitude >> drop;
    exponent += drop;
  }
  const double value = std::ldexp(static_cast<double>(magnitude), exponent);
  if (value == 0.0) return 0.0F;
  const float result = value >= 0x1p128 ? kInf : static_cast<float>(value);
  return negative ? -result : result;
}

BF16 random_bf16(PhiloxStream& random, int low, int high) {
  const auto field = static_cast<uint32_t>(low) + random.next_u32() % static_cast<uint32_t>(high - low + 1);
  return BF16{static_cast<uint16_t>((random.next_u32() & 0x807fu) | (field << 7))};
}

bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

struct Step {
  BF16 a[16] = {};
  BF16 b[16] = {};
  float run(float acc) const { return tensor_core_step(a, b, acc); }
};

BF16 bf(float x) { return to_bf16(x); }

}  // namespace

TEST_CASE("A tensor-core step is the integer sum of its documentation") {
  PhiloxStream random(11, 2);
  // Ranges of exponent fields: alike, wide, tiny, subnormal with all, huge.
  const int ranges[][2] = {{120, 134}, {90, 160}, {1, 40}, {0, 1}, {0, 200}, {180, 200}};
  int64_t different = 0;
  for (const auto& range : ranges) {
    for (int trial = 0; trial < 20000; ++trial) {
      Step s;
      for (int i = 0; i < 16; ++i) {
        s.a[i] = random_bf16(random, range[0], range[1]);
        s.b[i] = random_bf16(random, range[0], range[1]);
        if (random.next_u32() % 8 == 0) s.a[i] = bf(0.0F);
      }
      const auto acc =
          std::bit_cast<float>((random.next_u32() & 0x807fffffu) | (random.next_u32() % 250 << 23));
      different += same(s.run(acc), naive_step(s.a, s.b, acc)) ? 0 : 1;
    }
  }
  CHECK(different == 0);
}

TEST_CASE("A tensor-core step cuts toward zero and keeps 25 fractional bits") {
  Step s;
  s.a[0] = bf(1.0F);
  s.b[0] = bf(0x1p-24F);
  CHECK(s.run(1.0F) == 1.0F);
  CHECK(s.run(-1.0F) == -0x1.fffffep-1F);
  s.b[0] = bf(0x1p-25F);
  CHECK(s.run(-1.0F) == -0x1.fffffep-1F);
  s.b[0] = bf(0x1p-26F);  // below the last kept bit
  CHECK(s.run(-1.0F) == -1.0F);
  // Neither zeros nor what multiplies them count.
  s.a[1] = bf(0.0F);
  s.b[1] = bf(0x1p100F);
  s.b[0] = bf(0x1.02p-60F);
  CHECK(s.run(0.0F) == 0x1.02p-60F);
  // Below 2^-133 the cut no longer follows the largest exponent: 2^-158 is the last bit kept.
  Step tiny;
  tiny.a[0] = bf(0x1p-75F);
  tiny.b[0] = bf(0x1p-74F);
  tiny.a[1] = bf(-0x1p-80F);
  tiny.b[1] = bf(0x1p-79F);
  CHECK(tiny.run(0.0F) == 0x1p-149F);  // 2^-149 - 2^-159
  tiny.a[1] = bf(-0x1p-79F);
  CHECK(tiny.run(0.0F) == 0.0F);  // 2^-149 - 2^-158
}

TEST_CASE("Special values of a tensor-core step") {
  Step s;
  s.a[0] = bf(1.0F);
  s.b[0] = bf(1.0F);
  CHECK(s.run(kInf) == kInf);
  CHECK(std::isnan(s.run(std::numeric_limits<float>::quiet_NaN())));
  s.a[1] = bf(kInf);
  s.b[1] = bf(-2.0F);
  CHECK(s.run(1.0F) == -kInf);
  CHECK(std::isnan(s.run(kInf)));
  s.b[1] = bf(0.0F);
  CHECK(std::isnan(s.run(1.0F)));

  Step large;  // products that exceed fp32 are finite terms
  large.a[0] = bf(0x1p100F);
  large.b[0] = bf(0x1p100F);
  CHECK(large.run(0.0F) == kInf);
  large.a[1] = bf(-0x1p100F);
  large.b[1] = bf(0x1p100F);
  CHECK(large.run(0.0F) == 0.0F);
  CHECK(!std::signbit(large.run(-0.0F)));

  Step tiny;  // subnormal operands and results
  tiny.a[0] = BF16{1};
  tiny.b[0] = bf(1.0F);
  CHECK(tiny.run(0.0F) == 0x1p-133F);
  CHECK(tiny.run(0x1p-149F) == 0x1p-133F + 0x1p-149F);
}

TEST_CASE("Exact products are chains of steps for every shape") {
  for (const int64_t k : {16, 48, 256}) {
    const std::vector<BF16> a = rounded(normal_values(5 * k, 1));
    std::vector<BF16> b = rounded(normal_values(19 * k, 2));
    b[static_cast<size_t>(3 * k + 5)] = bf(kInf);
    b[static_cast<size_t>(4 * k + 5)] = bf(std::numeric_limits<float>::quiet_NaN());
    std::vector<const BF16*> a_rows;
    std::vector<const BF16*> b_rows;
    for (int64_t i = 0; i < 5; ++i) a_rows.push_back(a.data() + i * k);
    for (int64_t j = 0; j < 19; ++j) b_rows.push_back(b.data() + j * k);
    std::vector<float> c(5 * 20, -1.0F);
    gemm_rows_exact(a_rows.data(), 5, b_rows.data(), 19, k, c.data(), 20);
    const std::vector<float> wide_a = widened(a);
    const std::vector<float> wide_b = widened(b);
    std::vector<const float*> wide_a_rows;
    std::vector<const float*> wide_b_rows;
    for (int64_t i = 0; i < 5; ++i) wide_a_rows.push_back(wide_a.data() + i * k);
    for (int64_t j = 0; j < 19; ++j) wide_b_rows.push_back(wide_b.data() + j * k);
    std::vector<float> wide(c.size(), -1.0F);
    gemm_rows_exact(wide_a_rows.data(), 5, wide_b_rows.data(), 19, k, wide.data(), 20);
    int64_t different = 0;
    for (size_t i = 0; i < 5; ++i) {
      for (size_t j = 0; j < 19; ++j) {
        float acc = 0.0F;
        for (int64_t p = 0; p < k; p += 16) acc = tensor_core_step(a_rows[i] + p, b_rows[j] + p, acc);
        different += same(c[i * 20 + j], acc) && same(wide[i * 20 + j], acc) ? 0 : 1;
      }
      CHECK(c[i * 20 + 19] == -1.0F);
    }
    CHECK(different == 0);
  }
}

TEST_CASE("Exact products are as accurate as 24 cut bits allow") {
  constexpr int64_t kK = 1024;
  const std::vector<BF16> a = rounded(normal_values(kK, 3));
  const std::vector<BF16> b = rounded(normal_values(kK, 4));
  const BF16* a_row = a.data();
  const BF16* b_row = b.data();
  float c = 0.0F;
  gemm_rows_exact(&a_row, 1, &b_row, 1, kK, &c, 1);
  double sum = 0.0;
  double magnitude = 0.0;
  for (size_t i = 0; i < kK; ++i) {
    const double product = double{to_float(a[i])} * to_float(b[i]);
    sum += product;
    magnitude += std::abs(product);
  }
  CHECK(std::abs(c - sum) < 64 * 0x1p-23 * magnitude);
}

}  // namespace accord::kernels::testing
