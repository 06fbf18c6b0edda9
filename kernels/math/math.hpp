#pragma once
// exp and log of fp32, the only ones that row-local operations use: no libm, explicit fused multiply-adds,
// so that the bits depend on the argument alone. The eight-lane exp (math/simd.hpp) gives the same bits.
//
//   exp: x = n ln2 + r, n = nearest integer, |r| <= ln2/2; degree-6 minimax polynomial in r (relative error
//        3.1e-9), scaled by 2^n in two factors so that subnormal results are rounded once. Error < 1.1 ulp.
//        exp(NaN) = NaN, exp(-inf) = +0, overflow to +inf above 88.7228.
//   log: x = 2^k m, m in [sqrt(1/2), sqrt(2)); log m = f - (f^2/2 - s (f^2/2 + R(s^2))), f = m - 1,
//        s = f / (2 + f), R from the series of artanh. Error < 1 ulp. log(0) = -inf, log(x < 0) = NaN.
#include <cstdint>

namespace accord::kernels {

float exp_f32(float x);
float log_f32(float x);

// out[i] = exp_f32(x[i]); out may be x.
void exp_rows(const float* x, float* out, int64_t count);

}  // namespace accord::kernels
