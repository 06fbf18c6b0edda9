#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/formats/nvfp4_choice.hpp"
#include "support/catch.hpp"

// Four over six divides by 2688 or 1536. Kernels do it with the rounded reciprocal and one correction;
// scaling by a power of two changes nothing, so all significands of one binade are all cases.
TEST_CASE("formats: one correction step divides by the NVFP4 ranges exactly") {
  for (const float divisor : {2688.0F, 1536.0F}) {
    const float inverse = 1.0F / divisor;
    int64_t different = 0;
    for (uint32_t bits = 0x3f800000u; bits < 0x40000000u; ++bits) {
      const auto n = std::bit_cast<float>(bits);
      const float quotient = n * inverse;
      different += std::fma(std::fma(-quotient, divisor, n), inverse, quotient) != n / divisor ? 1 : 0;
    }
    CHECK(different == 0);
  }
}

TEST_CASE("formats: one correction step divides by six exactly") {
  int64_t different = 0;
  for (uint32_t bits = 0x3f800000u; bits < 0x40000000u; ++bits) {
    const auto n = std::bit_cast<float>(bits);
    different += accord::formats::divide_by_six(n) != n / 6.0F ? 1 : 0;
  }
  CHECK(different == 0);
}
