#pragma once
// Products of rows: C[m][n] = sum over k of A[m][k] * B[n][k], fp32.
//
// Order of every sum: sixteen lanes of fused multiply-adds over k, ascending, then the fixed tree of
// math/simd.hpp. It depends on K alone, so an output never depends on M, N, tiling, or threads.
// The register tile is 3 x 2 outputs (12 accumulators); smaller tiles at the edges keep the same order.
// Measured on one core (accord bench kernels): 75 to 80 % of the AVX2 multiply-add peak at K = 512, M >= 64.
#include <cstdint>

#include "base/dtype.hpp"

namespace accord::kernels {

inline constexpr int64_t kGemmLanes = 16;

// Elements of an operand row after padding; the elements from K on must be +0.
constexpr int64_t padded_k(int64_t k) { return (k + kGemmLanes - 1) / kGemmLanes * kGemmLanes; }

// a: m row pointers; b: n row pointers; k a multiple of 16; c[i * ldc + j].
// B may be bfloat16, widened in registers at each use.
void gemm_rows(const float* const* a, int64_t m, const float* const* b, int64_t n, int64_t k, float* c,
               int64_t ldc);
void gemm_rows(const float* const* a, int64_t m, const BF16* const* b, int64_t n, int64_t k, float* c,
               int64_t ldc);

}  // namespace accord::kernels
