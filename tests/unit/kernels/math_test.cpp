#include "kernels/math/math.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/math/convert.hpp"
#include "kernels/math/exp_log.hpp"
#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {

TEST_CASE("exp stays within 1.1 ulp and has one result in both forms") {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0xfffff000u; bits += 9973) {
    x.push_back(std::bit_cast<float>(bits));
  }
  std::vector<float> y(x.size());
  exp_rows(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0.0;
  int64_t different = 0;
  int64_t nan_lost = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float scalar = exp_f32(x[i]);
    if (std::isnan(x[i])) {
      nan_lost += !std::isnan(scalar) || !std::isnan(y[i]);
      continue;
    }
    different += std::bit_cast<uint32_t>(scalar) != std::bit_cast<uint32_t>(y[i]);
    const double exact = std::exp(double{x[i]});
    if (exact > 0x1p-126 && exact < 3.4e38) worst = std::max(worst, ulps(scalar, exact));
  }
  CAPTURE(worst);
  CHECK(worst < 1.1);
  CHECK(different == 0);
  CHECK(nan_lost == 0);
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(exp_f32(0.0F) == 1.0F);
  CHECK(exp_f32(-inf) == 0.0F);
  CHECK(exp_f32(inf) == inf);
  CHECK(exp_f32(88.73F) == inf);
  CHECK(exp_f32(-103.0F) == static_cast<float>(std::exp(-103.0)));  // subnormal
}

TEST_CASE("exp of what is not positive has the bits of exp") {
  int64_t different = 0;
  for (uint32_t bits = 0x80000000u; bits < 0xff800000u; bits += 4093) {
    const auto x = std::bit_cast<float>(bits);
    different +=
        std::bit_cast<uint32_t>(exp_scalar(x)) != std::bit_cast<uint32_t>(exp_nonpositive(x)) ? 1 : 0;
  }
  CHECK(different == 0);
  CHECK(exp_nonpositive(0.0F) == 1.0F);
  CHECK(exp_nonpositive(-std::numeric_limits<float>::infinity()) == 0.0F);
  CHECK(std::isnan(exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("log stays within one ulp") {
  double worst = 0.0;
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += 9967) {
    const float x = std::bit_cast<float>(bits);
    const double exact = std::log(double{x});
    if (exact != 0.0) worst = std::max(worst, ulps(log_f32(x), exact));
  }
  CAPTURE(worst);
  CHECK(worst < 1.0);
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(log_f32(1.0F) == 0.0F);
  CHECK(log_f32(0.0F) == -inf);
  CHECK(log_f32(inf) == inf);
  CHECK(std::isnan(log_f32(-1.0F)));
  CHECK(std::isnan(log_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("narrow rounds like to_bf16") {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0xfffffff0u - 65521; bits += 65521) {
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(std::bit_cast<float>((bits & 0xffff0000u) | 0x8000u));  // a tie
  }
  std::vector<BF16> y(x.size());
  narrow(x.data(), y.data(), static_cast<int64_t>(x.size()));
  int64_t different = 0;
  for (size_t i = 0; i < x.size(); ++i) different += y[i].bits != to_bf16(x[i]).bits;
  CHECK(different == 0);
}

}  // namespace accord::kernels::testing
