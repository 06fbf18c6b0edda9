#pragma once
// Blackwell's own conversions to E2M1 and E8M0, which nvcc 13.0 compiles for a family (sm_100f) or one chip
// (sm_100a, sm_103a) only; ACCORD_NATIVE_CVT says whether this pass has them. PTX gives them the rules of
// docs/contract.md, section 1, so nothing is fixed up behind them (tests/unit/kernels/native_cvt_test.cpp and
// tests/gpu/cvt_header_test.cpp compare the rules; no device has run them yet):
//
//   e2m1x2    to nearest even, saturating; NaN of either sign is +6 (0x7); zeros keep their sign
//   ue8m0x2   toward +Inf; what lies above 2^127, Inf included, is 0xfe; +0 to 2^-127 are 0; NaN is 0xff
//
// E4M3 and E5M2 have instructions on every architecture of this project (quantize.cuh).
#include <cstdint>

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000
#define ACCORD_NATIVE_CVT 1

namespace accord::gpu {

// Eight codes to a word, the first in the low nibble.
__device__ inline uint32_t native_e2m1(const float (&x)[8]) {
  uint32_t codes;
  asm("{.reg .b8 a, b, c, d; cvt.rn.satfinite.e2m1x2.f32 a, %2, %1; cvt.rn.satfinite.e2m1x2.f32 b, %4, %3;"
      "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5; cvt.rn.satfinite.e2m1x2.f32 d, %8, %7;"
      "mov.b32 %0, {a, b, c, d};}"
      : "=r"(codes)
      : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
  return codes;
}

// x: +0 or above, or NaN.
__device__ inline uint32_t native_e8m0_up(float x) {
  uint16_t pair;
  asm("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0F), "f"(x));
  return pair;
}

}  // namespace accord::gpu
#endif
