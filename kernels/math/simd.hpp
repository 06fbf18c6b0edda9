#pragma once
// Eight fp32 lanes (AVX2 + FMA), and the fixed summation order of the CPU kernels.
//
// Order of a sum over i = 0..n-1 ("sixteen lanes"): lane j adds the elements i = j, j+16, j+32, ... in
// ascending order; then (j, j+8); then neighbours (0,1), (2,3), ...; then neighbours again; then the two
// halves. Elements past n count as +0. Every reduction over K, over a row, or over a vocabulary uses it.
//
// Functions here are inline because they are single instructions inside the kernels' loops.
#include <immintrin.h>

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/math/exp_log.hpp"

namespace accord::kernels {

using F8 = __m256;

inline F8 f8(float x) { return _mm256_set1_ps(x); }
inline F8 f8_zero() { return _mm256_setzero_ps(); }

inline F8 load8(const float* p) { return _mm256_loadu_ps(p); }
inline F8 load8(const BF16* p) {
  const __m128i u = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(u), 16));
}

inline void store8(float* p, F8 x) { _mm256_storeu_ps(p, x); }
// The rounding of to_bf16: nearest even, NaN stays a quiet NaN.
inline void store8(BF16* p, F8 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i h = _mm256_blendv_epi8(rounded, quiet, is_nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// The last n < 8 elements; the lanes past them are +0 on load and not touched on store.
inline F8 load_tail(const float* p, int64_t n) {
  alignas(32) float t[8] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i];
  return _mm256_load_ps(t);
}
inline F8 load_tail(const BF16* p, int64_t n) {
  alignas(32) float t[8] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = to_float(p[i]);
  return _mm256_load_ps(t);
}
template <class T>
inline void store_tail(T* p, F8 x, int64_t n) {
  alignas(32) float t[8];
  _mm256_store_ps(t, x);
  for (int64_t i = 0; i < n; ++i) p[i] = from_float<T>(t[i]);
}

// max that ignores a NaN in `x` (maxps returns its second operand when either is NaN).
inline F8 max_ignoring_nan(F8 running, F8 x) { return _mm256_max_ps(x, running); }

// Steps 2 to 5 of the fixed order for one sum: v = lanes j and j+8 already added.
inline float reduce8(F8 v) {
  v = _mm256_hadd_ps(v, v);
  v = _mm256_hadd_ps(v, v);
  const __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  return _mm_cvtss_f32(sum);
}
// The same for four sums at once.
inline __m128 reduce8x4(F8 a, F8 b, F8 c, F8 d) {
  const F8 v = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

inline float reduce_max8(F8 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
  return _mm_cvtss_f32(m);
}

inline F8 exp8(F8 x) {
  using C = ExpConstants;
  // min and max return the second operand for NaN, so NaN stays.
  x = _mm256_min_ps(f8(C::kHigh), x);
  x = _mm256_max_ps(f8(C::kLow), x);
  const F8 shifted = _mm256_fmadd_ps(x, f8(C::kLog2e), f8(C::kMagic));
  const F8 n = _mm256_sub_ps(shifted, f8(C::kMagic));
  F8 r = _mm256_fnmadd_ps(n, f8(C::kLn2Hi), x);
  r = _mm256_fnmadd_ps(n, f8(C::kLn2Lo), r);
  F8 p = _mm256_fmadd_ps(f8(C::kC6), r, f8(C::kC5));
  p = _mm256_fmadd_ps(p, r, f8(C::kC4));
  p = _mm256_fmadd_ps(p, r, f8(C::kC3));
  p = _mm256_fmadd_ps(p, r, f8(C::kC2));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
  p = _mm256_add_ps(p, f8(1.0F));
  const __m256i k = _mm256_cvtps_epi32(n);
  const __m256i k1 = _mm256_srai_epi32(k, 1);
  const __m256i k2 = _mm256_sub_epi32(k, k1);
  const __m256i bias = _mm256_set1_epi32(127);
  const F8 s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k1, bias), 23));
  const F8 s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k2, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, s1), s2);
}

}  // namespace accord::kernels
