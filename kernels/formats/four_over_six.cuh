#pragma once
// Four over six on the device. Nearly every block is decided by the short rule of nvfp4_choice.hpp, in six
// operations an element and candidate; the others by the sums of the contract, by a whole warp.
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

// What the short rule takes of an outer scale. All lanes of the warp make it together, each for its own.
struct ShortScope {
  float s;        // a NaN, which no block is ordinary with, unless the scope is
  float inverse;  // 2^6/S
  // Lane l has the bits of k*2^-6 for a scale of significand 1 + (l % 8)/8 and exponent field 0, plus
  // (l % 8)*2^20: so that 2^20 times a scale's code subtracts to its own.
  uint32_t multiplier;
  bool nudged;  // in all lanes of the warp
};
// kShared: the outer scale is the same in all lanes, so that each looks at one tie.
template <bool kShared>
__device__ inline ShortScope short_scope(const formats::OuterScale& outer) {
  ShortScope scope;
  scope.s = formats::is_ordinary_scope(outer.amax) ? outer.s : __int_as_float(0x7fffffff);
  scope.inverse = outer.inverse * 0x1p6F;
  const unsigned eighths = threadIdx.x % 8;
  const float unit = (1.0F + static_cast<float>(eighths) * 0.125F) * scope.inverse;
  const float k = reciprocal(unit);
  float nudged;
  bool right = true;
  if constexpr (kShared) {
    const formats::NearTie near = formats::near_tie(k, unit, static_cast<int>(threadIdx.x % kWarp / 8));
    const bool wrong = !near.right(k);
    const uint32_t lanes = 0x01010101u << eighths;
    const bool up = (__ballot_sync(kFullMask, wrong && near.above) & lanes) != 0;
    const bool down = (__ballot_sync(kFullMask, wrong && !near.above) & lanes) != 0;
    nudged = formats::nudged(k, up, down);
    right = near.right(nudged);
  } else {
    formats::NearTie near[4];
    bool up = false;
    bool down = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      near[i] = formats::near_tie(k, unit, i);
      const bool wrong = !near[i].right(k);
      up = up || (wrong && near[i].above);
      down = down || (wrong && !near[i].above);
    }
    nudged = formats::nudged(k, up, down);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      right = right && near[i].right(nudged);
    }
  }
  scope.nudged = __all_sync(kFullMask, right) != 0;
  scope.multiplier = __float_as_uint(scope.nudged ? nudged : k) + (7u << 23) + eighths * (1u << 20);
  return scope;
}

// Both candidates of a block, meaningful if it is ordinary.
struct ShortCandidates {
  uint32_t code6;
  uint32_t code4;
  float multiplier6;  // k*2^-6
  float multiplier4;
  float square6;  // 2^25*multiplier6^2
  float square4;
  bool ordinary;

  __device__ uint32_t code(bool take_four) const { return take_four ? code4 : code6; }
};
// kTable: the outer scale is that of the eight lanes' whose multipliers these are.
template <bool kTable>
__device__ inline ShortCandidates short_candidates(float block_amax, const ShortScope& scope) {
  const float base = formats::divide_by_six(block_amax) * scope.s;
  ShortCandidates c;
  const uint32_t codes = cast8_pair<Element::kE4M3>(base, base * 1.5F);  // saturates at 448
  c.code6 = codes & 0xffu;
  c.code4 = codes >> 8;
  if constexpr (kTable) {
    const auto multiplier = [&](uint32_t code) {
      const uint32_t first = __shfl_sync(kFullMask, scope.multiplier, static_cast<int>(code), 8);
      return __uint_as_float(first - code * (1u << 20));
    };
    c.multiplier6 = multiplier(c.code6);
    c.multiplier4 = multiplier(c.code4);
  } else {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
    float six;
    float four;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(six), "=f"(four)
        : "r"(halves));
    c.multiplier6 = reciprocal(six * scope.inverse);
    c.multiplier4 = reciprocal(four * scope.inverse);
  }
  c.square6 = (c.multiplier6 * 0x1p25F) * c.multiplier6;
  c.square4 = (c.multiplier4 * 0x1p25F) * c.multiplier4;
  c.ordinary = formats::is_ordinary(base, c.code6);
  return c;
}

template <bool kAbsolute>
__device__ inline void add_error(const formats::TriedE2M1& tried, float& error) {
  error = kAbsolute ? error + fabsf(tried.error) : __fmaf_rn(tried.error, tried.error, error);
}

// Both halves of a word, by multiply-adds of packed bf16 where shifts and masks would do: those start at half
// the rate. (A lower half times 0, plus 0, is +0.)
__device__ inline uint32_t both_low(uint32_t pair) {
  uint32_t low;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(low) : "r"(pair));
  return low;
}
__device__ inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
__device__ inline float widen_upper(uint32_t pair) {
  constexpr uint32_t kOneZero = 0x3f800000u;
  return __uint_as_float(fma_bf16x2(pair, kOneZero, 0));
}

// Two bf16; their errors are added to `error`. The offsets come from packed bf16, as a^2 + 12.5: that moves
// where a grid ends by less than 0.02. Nudged, another offset is left in the lower half of the word; else
// only powers of two are.
template <bool kAbsolute, bool kNudged>
__device__ inline float2 try_pair(float low, float high, uint32_t squared, uint32_t squares, float multiplier,
                                  float& error) {
  constexpr uint32_t kOffsets =
      (__builtin_bit_cast(uint32_t, formats::kPowerOffset * 0x1p25F) >> 16) * 0x10001u;
  uint32_t upper = fma_bf16x2(squared, squares, kOffsets);
  uint32_t lower = fma_bf16x2(both_low(squared), squares, kOffsets);
  if constexpr (!kNudged) {
    upper &= 0x7f807f80u;
    lower &= 0x7f807f80u;
  }
  const formats::TriedE2M1 a = formats::try_e2m1<kNudged>(fabsf(low), multiplier, __uint_as_float(lower));
  const formats::TriedE2M1 b = formats::try_e2m1<kNudged>(fabsf(high), multiplier, __uint_as_float(upper));
  add_error<kAbsolute>(a, error);
  add_error<kAbsolute>(b, error);
  return {a.value, b.value};
}

// The rounded values of eight elements under both candidates.
struct TriedEight {
  float six[8];
  float four[8];
  float error6;
  float error4;
};
template <bool kAbsolute, bool kNudged>
__device__ inline void try_both(const uint4& v, const ShortCandidates& c, TriedEight& t) {
  const uint32_t squares6 = pack_bf16(c.square6, c.square6);
  const uint32_t squares4 = pack_bf16(c.square4, c.square4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t w = word(v, i);
    const float low = widen_upper(both_low(w));
    const float high = widen_upper(w);
    uint32_t squared;
    asm("mul.rn.bf16x2 %0, %1, %1;" : "=r"(squared) : "r"(w));
    const float2 six = try_pair<kAbsolute, kNudged>(low, high, squared, squares6, c.multiplier6, t.error6);
    const float2 four = try_pair<kAbsolute, kNudged>(low, high, squared, squares4, c.multiplier4, t.error4);
    t.six[2 * i] = six.x;
    t.six[2 * i + 1] = six.y;
    t.four[2 * i] = four.x;
    t.four[2 * i + 1] = four.y;
  }
}
template <bool kAbsolute, bool, int kCount>
__device__ inline void try_both(const float (&x)[kCount], const ShortCandidates& c, TriedEight& t) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    t.six[i] = 0.0F;
    t.four[i] = 0.0F;
    if (i < kCount) {
      const formats::TriedE2M1 six = formats::try_e2m1(x[i], c.multiplier6);
      const formats::TriedE2M1 four = formats::try_e2m1(x[i], c.multiplier4);
      t.six[i] = six.value;
      t.four[i] = four.value;
      add_error<kAbsolute>(six, t.error6);
      add_error<kAbsolute>(four, t.error4);
    }
  }
}

// Eight codes without signs from bytes with the code times four.
__device__ inline uint32_t join_codes(uint32_t even, uint32_t odd) { return (even >> 2) + (odd << 2); }
__device__ inline uint32_t codes_of(const float (&q)[8]) {
  return join_codes(cast8_four<Element::kE4M3>(q[0], q[2], q[4], q[6]),
                    cast8_four<Element::kE4M3>(q[1], q[3], q[5], q[7]));
}

// Both candidates' codes of eight elements, as bytes with the code times four: of s6, s4, s6, s4.
struct CodePairs {
  uint32_t even[2];
  uint32_t odd[2];
  __device__ explicit CodePairs(const TriedEight& t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      even[i] = cast8_four<Element::kE4M3>(t.six[4 * i], t.four[4 * i], t.six[4 * i + 2], t.four[4 * i + 2]);
      odd[i] = cast8_four<Element::kE4M3>(t.six[4 * i + 1], t.four[4 * i + 1], t.six[4 * i + 3],
                                          t.four[4 * i + 3]);
    }
  }
  __device__ uint32_t codes(uint32_t selector) const {
    return join_codes(__byte_perm(even[0], even[1], selector), __byte_perm(odd[0], odd[1], selector));
  }
};

// Where the sign of a code lies, in each of the nibbles of a word.
constexpr uint32_t kSignBits = 0x88888888u;

// Bytes of the signs of four bytes, as __byte_perm, whose intrinsic ignores the selector's bit for that.
__device__ inline uint32_t replicate_signs(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}

// The signs of the elements of a vector of bf16, as e2m1_signs, among other bits.
__device__ inline uint32_t signs_of(const uint4& v) {
  const uint32_t low = __byte_perm(v.x, v.y, 0x7351);
  const uint32_t high = __byte_perm(v.z, v.w, 0x7351);
  const uint32_t even = replicate_signs(low, high, 0xdc98);
  const uint32_t odd = replicate_signs(low, high, 0xfeba);
  return (even & 0x0f0f0f0fu) | (odd & 0xf0f0f0f0u);
}

template <int kElements, bool kAbsolute>
__device__ inline formats::Choice choose(const ShortCandidates& c, float error6, float error4) {
  return formats::choose<kElements>(error6, error4, kAbsolute ? c.multiplier4 : c.square4,
                                    kAbsolute ? c.multiplier6 : c.square6, c.code6 == c.code4, kAbsolute);
}

// One block of one row; the codes are those of the winner.
template <class T, bool kAbsolute, bool kNudged>
__device__ inline formats::Choice choose_short(const Block16<T>& block, const ShortCandidates& c, uint2& q) {
  TriedEight tried;
  tried.error6 = 0.0F;
  tried.error4 = 0.0F;
  const auto half = [&](int h) {
    if constexpr (Block16<T>::kVectors == 2) {
      try_both<kAbsolute, kNudged>(block.v[h], c, tried);
    } else {
      float x[8];
      block.values(h, x);
      try_both<kAbsolute, kNudged>(x, c, tried);
    }
    return CodePairs(tried);
  };
  const auto signs = [&](int h) {
    if constexpr (Block16<T>::kVectors == 2) {
      return signs_of(block.v[h]) & kSignBits;
    } else {
      float x[8];
      block.values(h, x);
      return e2m1_signs(x);
    }
  };
  const CodePairs low = half(0);
  const CodePairs high = half(1);
  const formats::Choice choice = choose<16, kAbsolute>(c, tried.error6, tried.error4);
  const uint32_t selector = choice.four ? 0x7531 : 0x6420;
  q.x = low.codes(selector) | signs(0);
  q.y = high.codes(selector) | signs(1);
  return choice;
}

// --- by the sums of the contract ---
//
// Few blocks need them, so a warp works on one block at a time: lanes 0 to 15 have the candidate s6, the
// others s4.

__device__ inline int this_lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline bool has_four() { return this_lane() >= kWarp / 2; }

// This lane's candidate.
__device__ inline BlockScale candidate_scale(float block_amax, const formats::OuterScale& outer) {
  const float base = (block_amax / 6.0F) * outer.s;
  return nvfp4_block_scale(fminf(has_four() ? base * 1.5F : base, formats::kE4M3Max), outer);
}

// |d| or d^2 of one element under a candidate: q is its rounded magnitude, d of -x is -d of x, and a NaN
// stays one.
__device__ inline float error_of(float q, float x, float scale, const formats::OuterScale& outer,
                                 bool absolute) {
  const float d = ((q * scale) * outer.amax) / outer.divisor - fabsf(x);
  return absolute ? fabsf(d) : d * d;
}

// The lane, 0 or 16, of the winner of two errors, each the same in the lanes of its candidate.
__device__ inline int winner_of(float error) {
  const float six = __shfl_sync(kFullMask, error, 0);
  const float four = __shfl_sync(kFullMask, error, kWarp / 2);
  return four < six ? kWarp / 2 : 0;  // a NaN compares false
}

// The codes of a block of one row, and of its scale.
struct QuantizedBlock {
  uint2 q;
  uint32_t scale;
};

// Element this_lane() % 16 of lane `from`'s block.
template <class T>
__device__ inline float element_of(const Block16<T>& block, int from) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  const int element = this_lane() % 16;
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 16 / kPerWord; ++i) {
    const uint32_t other = __shfl_sync(kFullMask, word(block.v[i / 4], i % 4), from);
    bits = element / kPerWord == i ? other : bits;
  }
  if constexpr (kPerWord == 2) {
    bits = element % 2 == 0 ? bits << 16 : bits & 0xffff0000u;
  }
  return __uint_as_float(bits);
}

// The blocks of the lanes in `pending`. All lanes of the warp call it.
template <class T>
__device__ inline void quantize_by_sums(const Block16<T>& block, float block_amax,
                                        const formats::OuterScale& outer, bool absolute, uint32_t pending,
                                        QuantizedBlock& result) {
  for (; pending != 0; pending &= pending - 1) {
    const int from = __ffs(static_cast<int>(pending)) - 1;
    const formats::OuterScale its{__shfl_sync(kFullMask, outer.amax, from),
                                  __shfl_sync(kFullMask, outer.s, from),
                                  __shfl_sync(kFullMask, outer.inverse, from), 0.0F, outer.divisor};
    const float x = element_of(block, from);
    const BlockScale scale = candidate_scale(__shfl_sync(kFullMask, block_amax, from), its);
    const float scaled = x * scale.multiplier;
    const RoundedE2M1 rounded = round_e2m1(scaled);
    const float term = error_of(rounded.value, x, scale.value, its, absolute);
    // e = fl(e + |d|) or fl(e + d^2) in ascending order from +0.
    float error = 0.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      error = error + __shfl_sync(kFullMask, term, i, 16);
    }
    uint32_t codes = ((rounded.bits & 7u) | ((__float_as_uint(scaled) >> 28) & 8u)) << (this_lane() % 8 * 4);
#pragma unroll
    for (int offset = 1; offset < 8; offset *= 2) {
      codes |= __shfl_xor_sync(kFullMask, codes, offset);
    }
    const int winner = winner_of(error);
    const QuantizedBlock its_result{
        {__shfl_sync(kFullMask, codes, winner), __shfl_sync(kFullMask, codes, winner + 8)},
        __shfl_sync(kFullMask, scale.code, winner)};
    if (this_lane() == from) {
      result = its_result;
    }
  }
}

// What a kernel needs of its outer scale. Under four over six all lanes of a warp make it together.
template <bool kFourOverSix>
struct BlockScope {
  formats::OuterScale outer;
  ShortScope brief;

  // shared: one scope for all lanes.
  __device__ BlockScope(const formats::OuterScale& from, bool shared) : outer(from) {
    if constexpr (kFourOverSix) {
      brief = shared ? short_scope<true>(from) : short_scope<false>(from);
    }
  }
};

// How blocks of an outer scale are quantized.
enum class Way {
  kPlain,
  // Four over six: by squared or absolute errors; kNudged: bf16, the scope the same for the warp, and nudged.
  kSquared,
  kAbsolute,
  kNudgedSquared,
  kNudgedAbsolute,
};
constexpr bool is_nudged(Way way) { return way == Way::kNudgedSquared || way == Way::kNudgedAbsolute; }
constexpr bool is_absolute(Way way) { return way == Way::kAbsolute || way == Way::kNudgedAbsolute; }

// kTable: as in short_candidates. `body` is called with the way as its template argument.
template <class T, bool kFourOverSix, bool kTable, class Body>
__device__ inline void with_way(const BlockScope<kFourOverSix>& scope, bool absolute, const Body& body) {
  if constexpr (!kFourOverSix) {
    body.template operator()<Way::kPlain>();
  } else {
    if constexpr (kTable && sizeof(T) == 2) {
      if (scope.brief.nudged) {
        return absolute ? body.template operator()<Way::kNudgedAbsolute>()
                        : body.template operator()<Way::kNudgedSquared>();
      }
    }
    return absolute ? body.template operator()<Way::kAbsolute>() : body.template operator()<Way::kSquared>();
  }
}

// A block of one row. Under four over six all lanes of the warp call it, and the result means something where
// `active`.
template <class T, Way kWay, bool kTable, bool kFourOverSix>
__device__ inline QuantizedBlock quantize_block(const Block16<T>& block, float block_amax,
                                                const BlockScope<kFourOverSix>& scope, bool active) {
  if constexpr (kWay == Way::kPlain) {
    const BlockScale scale = nvfp4_block_scale(block_amax * scope.outer.t, scope.outer);
    return {cast_block(block, scale.multiplier), scale.code};
  } else {
    constexpr bool kNudged = is_nudged(kWay);
    constexpr bool kAbsolute = is_absolute(kWay);
    QuantizedBlock result;
    const ShortCandidates c = short_candidates<kTable>(block_amax, scope.brief);
    const formats::Choice choice = choose_short<T, kAbsolute, kNudged>(block, c, result.q);
    result.scale = c.code(choice.four);
    const bool unsure = active && !(c.ordinary && choice.sure);
    if (__any_sync(kFullMask, unsure)) {
      quantize_by_sums(block, block_amax, scope.outer, kAbsolute, __ballot_sync(kFullMask, unsure), result);
    }
    return result;
  }
}

}  // namespace accord::gpu
