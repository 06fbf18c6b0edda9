#include "kernels/formats/decode.hpp"

#include <immintrin.h>

#include <cassert>
#include <cstddef>

namespace accord::formats {
namespace {

__m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// A 16-byte table in both lanes, for pshufb.
__m256i table16(int64_t low, int64_t high) { return _mm256_set_epi64x(high, low, high, low); }

// 32 values as the low and high bytes of their BF16 patterns.
struct SplitBF16 {
  __m256i low;
  __m256i high;
};

// Four-value groups 0 2 4 6 | 1 3 5 7, so that two in-lane unpacks give eight consecutive values a vector.
__m256i spread_groups(__m256i bytes) {
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

SplitBF16 split_e4m3(__m256i codes) {
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
  // Normal: BF16 is (code << 4) + (120 << 7). Subnormal: m * 2^-9, from a table.
  const __m256i normal_low = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(0x0f)), 4);
  const __m256i normal_high = _mm256_add_epi8(
      _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), _mm256_set1_epi8(0x07)), _mm256_set1_epi8(0x3c));
  const __m256i subnormal_low = _mm256_shuffle_epi8(table16(0x60402000c0800000, 0), magnitude);
  const __m256i subnormal_high = _mm256_shuffle_epi8(table16(0x3c3c3c3c3b3b3b00, 0), magnitude);
  const __m256i is_subnormal = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), magnitude);
  const __m256i is_nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f));
  const __m256i low = _mm256_blendv_epi8(normal_low, subnormal_low, is_subnormal);
  __m256i high = _mm256_blendv_epi8(normal_high, subnormal_high, is_subnormal);
  high = _mm256_or_si256(high, _mm256_and_si256(codes, _mm256_set1_epi8(-128)));
  return {low, _mm256_or_si256(high, is_nan)};  // 0xfff0: a quiet NaN
}

SplitBF16 split_e2m1(__m256i codes) {
  const __m256i low =
      table16(static_cast<int64_t>(0xc0804000c0800000), static_cast<int64_t>(0xc0804000c0800000));
  const __m256i high = table16(0x404040403f3f3f00, static_cast<int64_t>(0xc0c0c0c0bfbfbf80));
  return {_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes)};
}

// Writes 32 values, the first 16 times `first`, the others times `second`.
void store_scaled(SplitBF16 x, __m256 first, __m256 second, float* out) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i a = _mm256_unpacklo_epi8(x.low, x.high);
  const __m256i b = _mm256_unpackhi_epi8(x.low, x.high);
  _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a)), first));
  _mm256_storeu_ps(out + 8, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a)), first));
  _mm256_storeu_ps(out + 16, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b)), second));
  _mm256_storeu_ps(out + 24, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b)), second));
}

// 16 packed bytes to 32 codes in order, one a byte.
__m256i unpack_nibbles(__m128i packed) {
  const __m128i mask = _mm_set1_epi8(0x0f);
  const __m128i even = _mm_and_si128(packed, mask);
  const __m128i odd = _mm_and_si128(_mm_srli_epi16(packed, 4), mask);
  return _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
}

// E2M1(q) * multiplier(s) for each block of 16.
template <class Multiplier>
void decode_e2m1_row(const uint8_t* q, const uint8_t* s, int64_t k, float* out, Multiplier multiplier) {
  assert(k % 16 == 0);
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i / 2));
    const SplitBF16 x = split_e2m1(spread_groups(unpack_nibbles(packed)));
    store_scaled(x, _mm256_set1_ps(multiplier(s[i / 16])), _mm256_set1_ps(multiplier(s[i / 16 + 1])),
                 out + i);
  }
  if (i < k) {
    const float scale = multiplier(s[i / 16]);
    for (int64_t j = 0; j < 8; ++j) {
      const uint8_t pair = q[i / 2 + j];
      out[i + 2 * j] = from_e2m1(pair) * scale;
      out[i + 2 * j + 1] = from_e2m1(static_cast<uint8_t>(pair >> 4)) * scale;
    }
  }
}

void decode_mxfp8_e5m2_row(const uint8_t* q, const uint8_t* e8m0, int64_t k, float* out) {
  const float* scales = e8m0_table();
  for (int64_t i = 0; i < k; i += 8) {
    // An E5M2 code is the high byte of the FP16 pattern of its value.
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + i));
    const __m256 values = _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), codes));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(values, _mm256_set1_ps(scales[e8m0[i / 32]])));
  }
}

}  // namespace

void decode_bf16_row(const BF16* x, int64_t k, float* out) {
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  for (; i < k; ++i) {
    out[i] = to_float(x[i]);
  }
}

void decode_mxfp8_row(const uint8_t* q, const uint8_t* e8m0, int64_t k, float* out) {
  assert(k % 32 == 0);
  const float* scales = e8m0_table();
  for (int64_t i = 0; i < k; i += 32) {
    const __m256 scale = _mm256_set1_ps(scales[e8m0[i / 32]]);
    store_scaled(split_e4m3(spread_groups(load32(q + i))), scale, scale, out + i);
  }
}

void decode_mxfp8_row(const uint8_t* q, const uint8_t* e8m0, int64_t k, float* out, Element element) {
  if (element == Element::kE4M3) {
    decode_mxfp8_row(q, e8m0, k, out);
  } else {
    assert(k % 32 == 0);
    decode_mxfp8_e5m2_row(q, e8m0, k, out);
  }
}

void decode_nvfp4_products_row(const uint8_t* q, const uint8_t* s, int64_t k, float* out) {
  const float* table = e4m3_table();
  decode_e2m1_row(q, s, k, out, [table](uint8_t code) { return table[code]; });
}

void decode_nvfp4_row(const uint8_t* q, const uint8_t* s, float amax, int range, int64_t k, float* out) {
  const float* table = e4m3_table();
  const float inverse = 1.0F / static_cast<float>(6 * range);
  decode_e2m1_row(q, s, k, out, [=](uint8_t code) { return (table[code] * amax) * inverse; });
}

}  // namespace accord::formats
