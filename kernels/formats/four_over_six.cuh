#pragma once
// Four over six on the device. Nearly every block is decided by the short rule of nvfp4_choice.hpp, which
// rounds an element in five operations a candidate and needs no decoding; the others by the sums of the
// contract.
#include "kernels/formats/nvfp4_choice.hpp"
#include "kernels/formats/quantize.cuh"

namespace accord::gpu {

// --- by the short rule ---

// 1/x with the rounding of a division where x and 1/x are normal.
__device__ inline float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return __fmaf_rn(__fmaf_rn(-x, r, 1.0F), r, r);
}

// What the short rule takes of an outer scale.
struct ShortScope {
  float s;        // a NaN, which no block is ordinary with, unless the scope is
  float inverse;  // 2^6/S
};
__device__ inline ShortScope short_scope(const formats::OuterScale& outer) {
  return {formats::is_ordinary_scope(outer.amax) ? outer.s : __int_as_float(0x7fffffff),
          outer.inverse * 0x1p6F};
}

// Both candidates of a block, meaningful if it is ordinary.
struct ShortCandidates {
  uint32_t codes;  // s6 in the low byte, s4 above
  float six;
  float four;
  float multiplier6;  // k*2^-6
  float multiplier4;
  bool ordinary;

  __device__ uint32_t code(bool take_four) const { return take_four ? codes >> 8 : codes & 0xffu; }
};
__device__ inline ShortCandidates short_candidates(float block_amax, const ShortScope& scope) {
  const float base = formats::divide_by_six(block_amax) * scope.s;
  ShortCandidates c;
  c.codes = cast8_pair<Element::kE4M3>(base, base * 1.5F);  // saturates at 448
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(c.codes)));
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(c.six), "=f"(c.four)
      : "r"(halves));
  c.multiplier6 = reciprocal(c.six * scope.inverse);
  c.multiplier4 = reciprocal(c.four * scope.inverse);
  c.ordinary = formats::is_ordinary(base, c.six);
  return c;
}

// The codes of eight elements without signs; their errors are added to `error`.
template <bool kAbsolute, int kCount>
__device__ inline uint32_t try_short(const float (&x)[kCount], float multiplier, float& error) {
  float q[8] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const formats::TriedE2M1 tried = formats::try_e2m1(x[i], multiplier);
    q[i] = tried.value;
    error = kAbsolute ? error + fabsf(tried.error) : __fmaf_rn(tried.error, tried.error, error);
  }
  // Bytes with the code times four.
  const uint32_t even = cast8_four<Element::kE4M3>(q[0], q[2], q[4], q[6]);
  const uint32_t odd = cast8_four<Element::kE4M3>(q[1], q[3], q[5], q[7]);
  return (even >> 2) + (odd << 2);
}

// Where the sign of a code lies, in each of the nibbles of a word.
constexpr uint32_t kSignBits = 0x88888888u;

// The signs of the elements of a vector of bf16, as e2m1_signs, among other bits.
__device__ inline uint32_t signs_of(const uint4& v) {
  const uint32_t low = __byte_perm(v.x, v.y, 0x7351);
  const uint32_t high = __byte_perm(v.z, v.w, 0x7351);
  const uint32_t even = __byte_perm(low, high, 0x5410);
  const uint32_t odd = __byte_perm(low, high, 0x7632);
  return ((even >> 4) & 0x0f0f0f0fu) | (odd & 0xf0f0f0f0u);
}

// One block of one row; the codes are those of the winner.
template <class T, bool kAbsolute>
__device__ inline formats::Choice choose_short(const Block16<T>& block, const ShortCandidates& c, uint2& q) {
  float error6 = 0.0F;
  float error4 = 0.0F;
  uint32_t codes6[2];
  uint32_t codes4[2];
  uint32_t signs[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x[8];
    block.values(half, x);
    codes6[half] = try_short<kAbsolute>(x, c.multiplier6, error6);
    codes4[half] = try_short<kAbsolute>(x, c.multiplier4, error4);
    if constexpr (Block16<T>::kVectors == 2) {
      signs[half] = signs_of(block.v[half]);
    } else {
      signs[half] = e2m1_signs(x);
    }
  }
  const formats::Choice choice = formats::choose<16>(error6, error4, c.six, c.four, kAbsolute);
  q.x = (choice.four ? codes4[0] : codes6[0]) | (signs[0] & kSignBits);
  q.y = (choice.four ? codes4[1] : codes6[1]) | (signs[1] & kSignBits);
  return choice;
}

// --- by the sums of the contract ---

// n / 2688 or n / 1536 with the rounding of a division: one correction step with the rounded reciprocal gives
// it for every significand (tests/unit/kernels goes through them), as long as nothing underflows or
// overflows.
template <bool kFast>
__device__ inline float divide(float n, float divisor, float inverse) {
  if constexpr (kFast) {
    const float quotient = n * inverse;
    return __fmaf_rn(__fmaf_rn(-quotient, divisor, n), inverse, quotient);
  } else {
    return n / divisor;
  }
}

// Outer scales for which the short division is exact: q * s * A is 0 or lies between 2^-100 and 2^120.
__device__ inline bool divides_fast(float amax) { return amax > 0x1p-80F && amax < 0x1p100F; }

// |d| or d^2 of one element under a candidate: q is its rounded magnitude, d of -x is -d of x, and a NaN
// stays one.
template <bool kFast>
__device__ inline float error_of(float q, float x, float scale, const formats::OuterScale& outer,
                                 float inverse, bool absolute) {
  const float d = divide<kFast>((q * scale) * outer.amax, outer.divisor, inverse) - fabsf(x);
  return absolute ? fabsf(d) : d * d;
}

// One row of a block under a candidate scale: its codes without signs, and its error, e = fl(e + |d|) or
// fl(e + d^2) in ascending order from +0.
struct CandidateRow {
  uint2 codes;
  uint2 signs;  // with kSigns
  float error;
};
template <class T, bool kFast, bool kSigns>
__device__ inline CandidateRow try_candidate(const Block16<T>& block, const BlockScale& scale,
                                             const formats::OuterScale& outer, bool absolute) {
  const float inverse = 1.0F / outer.divisor;
  CandidateRow row{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x[8];
    float scaled[8];
    uint32_t bits[8];
    block.values(half, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      scaled[i] = x[i] * scale.multiplier;
      const RoundedE2M1 q = round_e2m1(scaled[i]);
      bits[i] = q.bits;
      row.error = row.error + error_of<kFast>(q.value, x[i], scale.value, outer, inverse, absolute);
    }
    (half == 0 ? row.codes.x : row.codes.y) = pack_e2m1(bits);
    if constexpr (kSigns) {
      (half == 0 ? row.signs.x : row.signs.y) = e2m1_signs(scaled);
    }
  }
  return row;
}

struct Candidates {
  BlockScale six;
  BlockScale four;
};
__device__ inline Candidates candidate_scales(float block_amax, const formats::OuterScale& outer) {
  const float base = (block_amax / 6.0F) * outer.s;
  return {nvfp4_block_scale(fminf(base, formats::kE4M3Max), outer),
          nvfp4_block_scale(fminf(base * 1.5F, formats::kE4M3Max), outer)};
}

// The codes of a block of one row, and of its scale.
struct QuantizedBlock {
  uint2 q;
  uint32_t scale;
};

// By the sums of the contract. Rare and long: one copy, apart from the loops that call it.
template <class T>
__device__ __noinline__ QuantizedBlock quantize_by_sums(Block16<T> block, float block_amax,
                                                        formats::OuterScale outer, bool absolute) {
  const Candidates c = candidate_scales(block_amax, outer);
  CandidateRow six;
  CandidateRow four;
  if (divides_fast(outer.amax)) {
    six = try_candidate<T, true, true>(block, c.six, outer, absolute);
    four = try_candidate<T, true, false>(block, c.four, outer, absolute);
  } else {
    six = try_candidate<T, false, true>(block, c.six, outer, absolute);
    four = try_candidate<T, false, false>(block, c.four, outer, absolute);
  }
  const bool take_four = four.error < six.error;  // a NaN compares false
  return {{(take_four ? four.codes.x : six.codes.x) | six.signs.x,
           (take_four ? four.codes.y : six.codes.y) | six.signs.y},
          take_four ? c.four.code : c.six.code};
}

template <class T, bool kFourOverSix>
__device__ inline QuantizedBlock quantize_block(const Block16<T>& block, float block_amax,
                                                const formats::OuterScale& outer, bool absolute) {
  QuantizedBlock result;
  if constexpr (!kFourOverSix) {
    const BlockScale scale = nvfp4_block_scale(block_amax * outer.t, outer);
    return {cast_block(block, scale.multiplier), scale.code};
  } else {
    const ShortCandidates c = short_candidates(block_amax, short_scope(outer));
    const formats::Choice choice =
        absolute ? choose_short<T, true>(block, c, result.q) : choose_short<T, false>(block, c, result.q);
    result.scale = c.code(choice.four);
    if (!(c.ordinary && choice.sure)) {
      result = quantize_by_sums(block, block_amax, outer, absolute);
    }
    return result;
  }
}

}  // namespace accord::gpu
