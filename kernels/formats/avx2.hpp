#pragma once
// Internal to kernels/formats: vector forms of the casts in element.hpp, eight values at a time. Function
// bodies are here because they must inline into every quantizer.
//
// Rounding. A magnitude `a` with exponent E (at least the format's smallest) has a grid of 2^(E-m), m
// fraction bits. Adding 2^(E-m+23) rounds it to that grid, to nearest even, in the adder: the sum's low bits
// are then n = a / 2^(E-m), 0 <= n <= 2^(m+1), and the code is ((E - Emin) << m) + n, a carry into the next
// binade included. No operand is ever subnormal on the way, and NaN is not handled: callers send blocks that
// hold one to the scalar code.
#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/formats/health.hpp"

namespace accord::formats::avx2 {

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const BF16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline __m256 abs8(__m256 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }

// Magnitude bits order like integers, with NaN above Inf: an integer maximum finds both the amax and the
// blocks that hold a special value.
inline __m256i magnitude_bits(__m256 x) { return _mm256_castps_si256(abs8(x)); }

// The largest magnitudes of 16 values, in eight lanes.
inline __m256i magnitude_bits16(const float* p) {
  return _mm256_max_epi32(magnitude_bits(load8(p)), magnitude_bits(load8(p + 8)));
}
inline __m256i magnitude_bits16(const BF16* p) {
  const __m256i bits =
      _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_set1_epi16(0x7fff));
  // The even values move above the odd ones; what then lies below does not change which is larger.
  const __m256i larger = _mm256_max_epi32(bits, _mm256_slli_epi32(bits, 16));
  return _mm256_and_si256(larger, _mm256_set1_epi32(0x7fff0000));
}

constexpr int32_t kLargestFiniteBits = 0x7f7fffff;

inline bool any_special(__m256i amax_bits) {
  const __m256i special = _mm256_cmpgt_epi32(amax_bits, _mm256_set1_epi32(kLargestFiniteBits));
  return _mm256_movemask_epi8(special) != 0;
}

// Lane i of the result is the largest lane of v[i].
inline __m256i reduce_max8(const __m256i (&v)[8]) {
  const auto pair = [](__m256i a, __m256i b) {
    const __m256 fa = _mm256_castsi256_ps(a);
    const __m256 fb = _mm256_castsi256_ps(b);
    return _mm256_max_epi32(_mm256_castps_si256(_mm256_shuffle_ps(fa, fb, 0x88)),
                            _mm256_castps_si256(_mm256_shuffle_ps(fa, fb, 0xdd)));
  };
  const __m256i low = pair(pair(v[0], v[1]), pair(v[2], v[3]));
  const __m256i high = pair(pair(v[4], v[5]), pair(v[6], v[7]));
  return _mm256_max_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                          _mm256_permute2x128_si256(low, high, 0x31));
}

struct Rounded {
  __m256i code;  // low byte + kBias is the code without sign; the higher bytes are of no use
  __m256 value;  // the rounded magnitude
};

template <int kMantissa, int kMinExponent>
struct Grid {
  // What is missing from Rounded::code, modulo 256.
  static constexpr int8_t kBias = static_cast<int8_t>(-((127 + kMinExponent) << kMantissa));
  // Half of the smallest subnormal: at or below it, a magnitude becomes zero.
  static constexpr float kZeroBelow = std::bit_cast<float>((127u + kMinExponent - kMantissa - 1) << 23);

  // a: magnitudes, not NaN, at most a little above the largest finite value.
  static Rounded round(__m256 a) {
    const __m256 smallest = _mm256_castsi256_ps(_mm256_set1_epi32((127 + kMinExponent) << 23));
    const __m256i exponent =
        _mm256_and_si256(_mm256_castps_si256(_mm256_max_ps(a, smallest)), _mm256_set1_epi32(0x7f800000));
    const __m256 adder =
        _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32((23 - kMantissa) << 23)));
    const __m256 sum = _mm256_add_ps(a, adder);
    return {_mm256_add_epi32(_mm256_castps_si256(sum), _mm256_srli_epi32(exponent, 23 - kMantissa)),
            _mm256_sub_ps(sum, adder)};
  }
};

using GridE4M3 = Grid<3, -6>;
using GridE5M2 = Grid<2, -14>;
using GridE2M1 = Grid<1, 0>;

// The low bytes of 32 codes, in order of the eight-lane groups 0 2 4 6 1 3 5 7 (what in-lane packing gives).
inline __m256i pack_low_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i mask = _mm256_set1_epi32(0xff);
  return _mm256_packus_epi16(_mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)),
                             _mm256_packus_epi32(_mm256_and_si256(c, mask), _mm256_and_si256(d, mask)));
}

// 0x80 where x is negative (-0 and negative NaN too), in the same order.
inline __m256i pack_signs(const __m256 (&x)[4]) {
  const __m256i low = _mm256_packs_epi32(_mm256_castps_si256(x[0]), _mm256_castps_si256(x[1]));
  const __m256i high = _mm256_packs_epi32(_mm256_castps_si256(x[2]), _mm256_castps_si256(x[3]));
  return _mm256_and_si256(_mm256_packs_epi16(low, high), _mm256_set1_epi8(-128));
}

// Undoes the order of the packs.
inline __m256i in_order(__m256i packed) {
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Running counts of a QuantHealth, per lane: flush them before a lane can reach 2^31.
struct Counts {
  __m256i saturated = _mm256_setzero_si256();
  __m256i flushed = _mm256_setzero_si256();
  __m256i amax = _mm256_setzero_si256();

  // y: scaled magnitudes of x.
  void add(__m256 x, __m256 y, float largest, float zero_below) {
    const __m256 over = _mm256_cmp_ps(y, _mm256_set1_ps(largest), _CMP_GT_OQ);
    const __m256 zero = _mm256_and_ps(_mm256_cmp_ps(y, _mm256_set1_ps(zero_below), _CMP_LE_OQ),
                                      _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_OQ));
    saturated = _mm256_sub_epi32(saturated, _mm256_castps_si256(over));
    flushed = _mm256_sub_epi32(flushed, _mm256_castps_si256(zero));
  }

  // Adds the counts to `health` and starts again.
  void flush(QuantHealth& health) {
    alignas(32) int32_t lanes[3][8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[0]), saturated);
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[1]), flushed);
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[2]), amax);
    for (int i = 0; i < 8; ++i) {
      health.saturated += lanes[0][i];
      health.flushed += lanes[1][i];
      const float lane_amax = std::bit_cast<float>(lanes[2][i]);
      health.amax = lane_amax > health.amax ? lane_amax : health.amax;
    }
    *this = Counts();
  }
};

}  // namespace accord::formats::avx2
