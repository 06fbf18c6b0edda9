#pragma once
// Products in the arithmetic of Hopper's BF16 tensor core, bit for bit, on the CPU: the reference that GPU
// products are compared with. Slow (about 1 ns per multiply-add on one core).
//
// C[m][n] = sum over k of A[m][k] * B[n][k] with one fp32 accumulator per output, k in ascending groups
// of 16. One group, with accumulator c:
//   E   = max( -133, e(c), e(a_i) + e(b_i) for i = 0..15 )   over the terms that are not zero; e(x) the
//   exponent of x,
//                                                             -126 for subnormals; a product is not
//                                                             normalized
//   sum = the 17 terms, each cut toward zero to a multiple of 2^(E-25), added exactly
//   c'  = sum cut toward zero to fp32, past the largest fp32 to infinity; a sum of zero is +0
// NaN, infinity times zero, and infinities of both signs give NaN; else an infinity stays.
// Measured on an H200 (docs/hardware.md). Elements may be permuted inside a group: the sum is exact.
#include <cstdint>

#include "base/dtype.hpp"

namespace accord::kernels {

inline constexpr int64_t kTensorCoreGroup = 16;

// One group: a[16], b[16].
float tensor_core_step(const BF16* a, const BF16* b, float acc);

// a: m row pointers; b: n row pointers; k a multiple of 16; c[i * ldc + j].
void gemm_rows_exact(const BF16* const* a, int64_t m, const BF16* const* b, int64_t n, int64_t k, float* c,
                     int64_t ldc);
// The same where the values are held in fp32, as gemm_rows takes them; each is a BF16 value.
void gemm_rows_exact(const float* const* a, int64_t m, const float* const* b, int64_t n, int64_t k, float* c,
                     int64_t ldc);

}  // namespace accord::kernels
