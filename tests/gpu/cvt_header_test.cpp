// CUDA's own headers say on the host what cvt does on a device (cuda_fp8.h, cuda_fp4.h): the contract's casts
// against them, where the build has them. Needs no device.
#include "kernels/formats/element.hpp"

#if __has_include(<cuda_fp4.h>) && __has_include(<cuda_fp8.h>)
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "support/catch.hpp"

namespace {

namespace formats = accord::formats;

// As tests/unit/kernels/native_cvt_test.cpp.
template <class F>
void for_each_input(F&& visit) {
  constexpr std::array<uint32_t, 6> kLow = {0, 1, 0x3fff, 0x4000, 0x4001, 0x7fff};
  for (uint32_t high = 0; high < 0x20000; ++high) {
    for (const uint32_t low : kLow) visit(std::bit_cast<float>((high << 15) | low));
  }
}

}  // namespace

TEST_CASE("CUDA's headers convert to the contract's codes") {
  int64_t e2m1 = 0;
  int64_t e4m3 = 0;
  int64_t e5m2 = 0;
  int64_t e8m0 = 0;
  for_each_input([&](float x) {
    e2m1 += __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest) != formats::to_e2m1(x) ? 1 : 0;
    e4m3 += __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3) != formats::to_e4m3(x) ? 1 : 0;
    e5m2 += __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2) != formats::to_e5m2(x) ? 1 : 0;
    if (std::signbit(x)) return;  // largest magnitudes alone become E8M0
    e8m0 += __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf) != formats::to_e8m0_up(x) ? 1 : 0;
  });
  CHECK(e2m1 == 0);
  CHECK(e4m3 == 0);
  CHECK(e5m2 == 0);
  CHECK(e8m0 == 0);
}
#endif
