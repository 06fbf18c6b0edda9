#pragma once
// Device code of the quantizers: casts and block scales with the bits of docs/contract.md, sections 1 to 3.
// The functions assume the flags of cmake/cuda.cmake, and that a product with a NaN is the NaN 0x7fffffff, as
// on every NVIDIA device: so a NaN's sign never reaches a code.
#include <cuda_fp8.h>

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/formats/element.hpp"
#include "kernels/formats/element_decode.hpp"
#include "kernels/formats/native_cvt.cuh"
#include "kernels/formats/nvfp4_scale.hpp"

namespace accord::gpu {

using formats::Element;

// --- largest magnitudes: NaN ignored, from +0 ---

// The larger magnitudes of two pairs. The signs of the result mean nothing: magnitude_low and _high drop
// them.
__device__ inline uint32_t max_abs_bf16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ inline float magnitude_low(uint32_t pair) { return __uint_as_float((pair << 16) & 0x7fffffffu); }
__device__ inline float magnitude_high(uint32_t pair) { return __uint_as_float(pair & 0x7fff0000u); }

// Of N vectors.
template <int N>
__device__ inline float amax_of(const uint4 (&v)[N], float) {
  float m = 0.0F;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      m = fmaxf(m, fabsf(__uint_as_float(word(v[i], j))));
    }
  }
  return m;
}
template <int N>
__device__ inline float amax_of(const uint4 (&v)[N], BF16) {
  uint32_t m = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      m = max_abs_bf16x2(m, word(v[i], j));
    }
  }
  return fmaxf(magnitude_low(m), magnitude_high(m));
}

// Over groups of `width` neighbouring lanes, a power of two. `mask` has the lanes that take part.
__device__ inline float lane_max(float m, int width, uint32_t mask = kFullMask) {
  for (int offset = width / 2; offset > 0; offset /= 2) {
    m = fmaxf(m, __shfl_xor_sync(mask, m, offset));
  }
  return m;
}

// --- MXFP8 ---

template <Element kElement>
__device__ inline uint32_t mxfp8_exponent(float amax) {
  const float inverse = kElement == Element::kE4M3 ? formats::kInverseE4M3Max : formats::kInverseE5M2Max;
#ifdef ACCORD_NATIVE_CVT
  return native_e8m0_up(amax * inverse);
#else
  const uint32_t bits = __float_as_uint(amax * inverse);
  // One more where any bit lies below the exponent, but subnormals up to 2^-127 have 0. 254 is the largest,
  // of Inf and of what lies above 2^127.
  const uint32_t e = (bits + (bits < 0x00800000u ? 0x003fffffu : 0x007fffffu)) >> 23;
  return min(e, 254u);
#endif
}

// 2^(127-e); of e = 254 it is the subnormal 2^-127.
__device__ inline float mxfp8_reciprocal(uint32_t e) {
  return __uint_as_float(max((254u - e) << 23, 0x00400000u));
}

// Two values, the first in the low byte.
template <Element kElement>
__device__ inline uint32_t cast8_pair(float low, float high) {
  uint16_t pair;
  if constexpr (kElement == Element::kE4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
}
// Four values to a word, the first in the low byte. One piece of assembly, so that the pairs are not widened
// before they are joined.
template <Element kElement>
__device__ inline uint32_t cast8_four(float a, float b, float c, float d) {
  uint32_t four;
  if constexpr (kElement == Element::kE4M3) {
    asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, "
        "%4, %3;"
        "mov.b32 %0, {low, high};}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  } else {
    asm("{.reg .b16 low, high; cvt.rn.satfinite.e5m2x2.f32 low, %2, %1; cvt.rn.satfinite.e5m2x2.f32 high, "
        "%4, %3;"
        "mov.b32 %0, {low, high};}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  }
  return four;
}

// --- NVFP4 ---

// The value of an E4M3 or E5M2 code, exact.
template <Element kElement>
__device__ inline float decode8(uint32_t code) {
  uint32_t halves;
  if constexpr (kElement == Element::kE4M3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(code)));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(code)));
  }
  float value;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(halves));
  return value;
}

// The code of one E4M3 scale, and what follows from it.
struct BlockScale {
  uint32_t code;
  float value;
  float multiplier;  // k
};

// scaled: not NaN, not negative.
__device__ inline BlockScale nvfp4_block_scale(float scaled, const formats::OuterScale& outer) {
  BlockScale scale;
  scale.code = cast8_pair<Element::kE4M3>(fminf(scaled, FLT_MAX), 0.0F);
  scale.value = decode8<Element::kE4M3>(scale.code);
  scale.multiplier = formats::clamp_finite(1.0F / (scale.value * outer.inverse));
  return scale;
}

// |x * k| rounded to E2M1, x * k not yet known to be finite. The sum's lowest bits are the code: the grids of
// the three binades are chosen by exact comparisons (saturated multiply-adds give 0 or 1), and each summand
// brings what its binade's codes start at.
struct RoundedE2M1 {
  uint32_t bits;  // the low four bits are the code without its sign; bits 4 to 22 are 0
  float value;
};
__device__ inline RoundedE2M1 round_e2m1(float scaled) {
  constexpr float kStep = 0x1p60F;  // any difference between floats near 2 or 4 saturates
  const float a = fminf(fabsf(scaled), formats::kE2M1Max);  // NaN gives 6
  const float above_two = __saturatef(__fmaf_rn(a, kStep, -2.0F * kStep));
  const float above_four = __saturatef(__fmaf_rn(a, kStep, -4.0F * kStep));
  // a < 2: grid 0.5, n = 0..4.   2 < a <= 4: grid 1, 2 + n = 4..6.   a > 4: grid 2, 4 + n = 6, 7.
  const float base = __fmaf_rn(above_four, 0x1p23F + 6.0F, __fmaf_rn(above_two, 0x1p22F + 2.0F, 0x1p22F));
  const float sum = a + base;
  return {__float_as_uint(sum), sum - base};
}

// The signs of eight floats, as the highest bits of the nibbles of eight codes.
__device__ inline uint32_t e2m1_signs(const float (&x)[8]) {
  const auto high = [&](int a, int b, int c, int d) {
    const uint32_t ab = __byte_perm(__float_as_uint(x[a]), __float_as_uint(x[b]), 0x0073);
    const uint32_t cd = __byte_perm(__float_as_uint(x[c]), __float_as_uint(x[d]), 0x0073);
    return __byte_perm(ab, cd, 0x5410);
  };
  return ((high(0, 2, 4, 6) >> 4) & 0x08080808u) | (high(1, 3, 5, 7) & 0x80808080u);
}

// Eight codes without their signs to a word, the first in the low nibble.
__device__ inline uint32_t pack_e2m1(const uint32_t (&bits)[8]) {
  const uint32_t low = bits[0] + (bits[1] << 4) + (bits[2] << 8) + (bits[3] << 12);
  const uint32_t high = bits[4] + (bits[5] << 4) + (bits[6] << 8) + (bits[7] << 12);
  return __byte_perm(low, high, 0x5410);
}

__device__ inline uint32_t cast_e2m1(const float (&x)[8], float multiplier) {
  float scaled[8];
#ifdef ACCORD_NATIVE_CVT
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    scaled[i] = x[i] * multiplier;
  }
  return native_e2m1(scaled);
#else
  uint32_t bits[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    scaled[i] = x[i] * multiplier;
    bits[i] = round_e2m1(scaled[i]).bits;
  }
  return pack_e2m1(bits) | e2m1_signs(scaled);
#endif
}

// Sixteen consecutive values of T, in registers as they lie in memory.
template <class T>
struct Block16 {
  static constexpr int kVectors = 16 / kVector<T>;
  uint4 v[kVectors];

  __device__ float amax() const { return amax_of(v, T()); }
  // Values 8 * half to 8 * half + 7.
  __device__ void values(int half, float (&x)[8]) const {
    if constexpr (kVectors == 2) {
      unpack<T>(v[half], x);
    } else {
      float a[4];
      float b[4];
      unpack<T>(v[2 * half], a);
      unpack<T>(v[2 * half + 1], b);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = a[i];
        x[i + 4] = b[i];
      }
    }
  }
};

template <class T, bool kAligned>
__device__ inline Block16<T> load_block(const T* p) {
  Block16<T> block;
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < Block16<T>::kVectors; ++i) {
      block.v[i] = load16(p + i * kVector<T>);
    }
  } else {
    T* elements = reinterpret_cast<T*>(block.v);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      elements[i] = p[i];
    }
  }
  return block;
}

template <class T>
__device__ inline uint2 cast_block(const Block16<T>& block, float multiplier) {
  float x[8];
  uint2 q;
  block.values(0, x);
  q.x = cast_e2m1(x, multiplier);
  block.values(1, x);
  q.y = cast_e2m1(x, multiplier);
  return q;
}

}  // namespace accord::gpu
