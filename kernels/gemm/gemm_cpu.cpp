#include "kernels/gemm/gemm.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {
namespace {

// MR x NR outputs; acc[i][j][h] holds lanes 8h..8h+7 of output (i, j).
template <int MR, int NR, class B>
inline void tile(const float* const* a, const B* const* b, int64_t k, float* c, int64_t ldc) {
  static_assert(MR * NR * 2 <= 12, "AVX2 has 16 registers: 12 accumulators, 2 rows of B, 1 of A");
  F8 acc[MR][NR][2];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NR; ++j) {
      acc[i][j][0] = f8_zero();
      acc[i][j][1] = f8_zero();
    }
  }
  const float* ap[MR];
  const B* bp[NR];
  for (int i = 0; i < MR; ++i) ap[i] = a[i];
  for (int j = 0; j < NR; ++j) bp[j] = b[j];
  for (int64_t p = 0; p < k; p += kGemmLanes) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      F8 bv[NR];
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) bv[j] = load8(bp[j] + p + 8 * h);
#pragma GCC unroll 4
      for (int i = 0; i < MR; ++i) {
        const F8 av = load8(ap[i] + p + 8 * h);
#pragma GCC unroll 4
        for (int j = 0; j < NR; ++j) acc[i][j][h] = _mm256_fmadd_ps(av, bv[j], acc[i][j][h]);
      }
    }
  }
  F8 sum[MR * NR];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NR; ++j) sum[i * NR + j] = _mm256_add_ps(acc[i][j][0], acc[i][j][1]);
  }
  if constexpr (NR == 2 && MR >= 2) {
    const __m128 rows01 = reduce8x4(sum[0], sum[1], sum[2], sum[3]);
    _mm_storel_pi(reinterpret_cast<__m64*>(c), rows01);
    _mm_storeh_pi(reinterpret_cast<__m64*>(c + ldc), rows01);
    if constexpr (MR == 3) {
      _mm_storel_pi(reinterpret_cast<__m64*>(c + 2 * ldc), reduce8x4(sum[4], sum[5], sum[4], sum[5]));
    }
  } else if constexpr (NR == 4) {
    _mm_storeu_ps(c, reduce8x4(sum[0], sum[1], sum[2], sum[3]));
  } else {
    for (int i = 0; i < MR; ++i) {
      for (int j = 0; j < NR; ++j) c[i * ldc + j] = reduce8(sum[i * NR + j]);
    }
  }
}

// All columns for MR rows, NR at a time.
template <int MR, int NR, class B>
void strip(const float* const* a, const B* const* b, int64_t n, int64_t k, float* c, int64_t ldc) {
  int64_t j = 0;
  for (; j + NR <= n; j += NR) {
    tile<MR, NR>(a, b + j, k, c + j, ldc);
  }
  for (; j < n; ++j) {
    tile<MR, 1>(a, b + j, k, c + j, ldc);
  }
}

template <class B>
void product(const float* const* a, int64_t m, const B* const* b, int64_t n, int64_t k, float* c,
             int64_t ldc) {
  int64_t i = 0;
  for (; i + 3 <= m; i += 3) {
    strip<3, 2>(a + i, b, n, k, c + i * ldc, ldc);
  }
  if (m - i == 2) {
    strip<2, 2>(a + i, b, n, k, c + i * ldc, ldc);
  } else if (m - i == 1) {
    strip<1, 4>(a + i, b, n, k, c + i * ldc, ldc);
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
