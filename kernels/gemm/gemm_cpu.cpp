#include "kernels/gemm/gemm.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {
namespace {

// Keeps a loaded vector in its register: the compiler would rather read it again as the memory operand of
// each multiply-add, and two loads a cycle cannot feed two multiply-adds that way.
inline F8 in_register(F8 x) {
  asm("" : "+x"(x));
  return x;
}

// MR x NR outputs up to the first step of the tree; acc[i][j][h] holds lanes 8h..8h+7 of output (i, j).
// sums[i * stride + j].
template <int MR, int NR, class B>
[[gnu::always_inline]] inline void lane_sums(const float* const* a, const B* const* b, int64_t k, F8* sums,
                                             int stride) {
  static_assert(MR * NR * 2 <= 12, "AVX2 has 16 registers: 12 accumulators, 2 rows of B, 1 of A");
  F8 acc[MR][NR][2];
  const float* ap[MR];
  const B* bp[NR];
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i) {
    ap[i] = a[i];
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) {
      acc[i][j][0] = f8_zero();
      acc[i][j][1] = f8_zero();
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < NR; ++j) bp[j] = b[j];
  for (int64_t p = 0; p < k; p += kGemmLanes) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      F8 bv[NR];
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) bv[j] = in_register(load8(bp[j] + p + 8 * h));
#pragma GCC unroll 4
      for (int i = 0; i < MR; ++i) {
        const F8 av = in_register(load8(ap[i] + p + 8 * h));
#pragma GCC unroll 4
        for (int j = 0; j < NR; ++j) acc[i][j][h] = _mm256_fmadd_ps(av, bv[j], acc[i][j][h]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) sums[i * stride + j] = _mm256_add_ps(acc[i][j][0], acc[i][j][1]);
  }
}

// All columns for MR rows: four at a time, so that one transposing reduction finishes four outputs.
template <int MR, class B>
void strip(const float* const* a, const B* const* b, int64_t n, int64_t k, float* c, int64_t ldc) {
  constexpr int kWide = 4;
  constexpr int kStep = MR == 1 ? 4 : 2;  // columns per register tile
  int64_t j = 0;
  F8 sums[MR * kWide];
  for (; j + kWide <= n; j += kWide) {
#pragma GCC unroll 2
    for (int half = 0; half < kWide; half += kStep) {
      lane_sums<MR, kStep>(a, b + j + half, k, sums + half, kWide);
    }
#pragma GCC unroll 4
    for (int i = 0; i < MR; ++i) {
      const F8* row = sums + i * kWide;
      _mm_storeu_ps(c + i * ldc + j, reduce8x4(row[0], row[1], row[2], row[3]));
    }
  }
  for (; j < n; ++j) {
    lane_sums<MR, 1>(a, b + j, k, sums, 1);
#pragma GCC unroll 4
    for (int i = 0; i < MR; ++i) c[i * ldc + j] = reduce8(sums[i]);
  }
}

template <class B>
void product(const float* const* a, int64_t m, const B* const* b, int64_t n, int64_t k, float* c,
             int64_t ldc) {
  int64_t i = 0;
  for (; i + 3 <= m; i += 3) {
    strip<3>(a + i, b, n, k, c + i * ldc, ldc);
  }
  if (m - i == 2) {
    strip<2>(a + i, b, n, k, c + i * ldc, ldc);
  } else if (m - i == 1) {
    strip<1>(a + i, b, n, k, c + i * ldc, ldc);
  }
}

}  // namespace

void gemm_rows(const float* const* a, int64_t m, const float* const* b, int64_t n, int64_t k, float* c,
               int64_t ldc) {
  product(a, m, b, n, k, c, ldc);
}

void gemm_rows(const float* const* a, int64_t m, const BF16* const* b, int64_t n, int64_t k, float* c,
               int64_t ldc) {
  product(a, m, b, n, k, c, ldc);
}

}  // namespace accord::kernels
