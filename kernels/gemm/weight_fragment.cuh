#pragma once
// Staging of weight rows in shared memory as they lie in device memory, and their exact decoding into the B
// fragments of mma m16n8k16.
//
// The order of elements inside a group of 16 is free, if A and B agree: lane t of a quad takes the elements
// 4t .. 4t+3 of a group (the instruction calls them 2t, 2t+1, 2t+8, 2t+9), which lie side by side.
#include "base/weight_format.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/mma.cuh"

namespace accord::kernels::cuda {

template <auto V>
struct Constant {
  static constexpr auto value = V;
};

template <WeightFormat F>
struct WeightTraits;
template <>
struct WeightTraits<WeightFormat::kBF16> {
  static constexpr int kBitsPerValue = 16;
  static constexpr int kBlock = 0;  // values per scale
  static constexpr int kPad = 32;   // 8 rows x 32 bytes of a group hit distinct banks, two phases
};
template <>
struct WeightTraits<WeightFormat::kMXFP8> {
  static constexpr int kBitsPerValue = 8;
  static constexpr int kBlock = 32;
  static constexpr int kPad = 16;  // 8 rows x 16 bytes hit distinct banks
};
template <>
struct WeightTraits<WeightFormat::kNVFP4> {
  static constexpr int kBitsPerValue = 4;
  static constexpr int kBlock = 16;
  static constexpr int kPad = 16;
};

// Shared-memory layout of BN rows of BK values: row data, then row scales. Scales are copied as aligned words
// that cover them (their first byte may lie anywhere in the first word).
template <WeightFormat F, int BN, int BK>
struct WeightStage {
  using Traits = WeightTraits<F>;
  static constexpr int kRowBytes = BK * Traits::kBitsPerValue / 8;
  static constexpr int kRowStride = kRowBytes + Traits::kPad;
  static constexpr int kScaleBytes =
      Traits::kBlock == 0 ? 0 : BK / (Traits::kBlock == 0 ? 1 : Traits::kBlock);
  static constexpr int kScaleWords = kScaleBytes == 0 ? 0 : (kScaleBytes + 3) / 4 + 1;
  static constexpr int kScaleOffset = BN * kRowStride;
  static constexpr int kBytes = (kScaleOffset + BN * kScaleWords * 4 + 15) / 16 * 16;
};

// E4M3 code pairs (bytes 0 and 1 of `codes` for the first, 2 and 3 for the second) as bf16x2 times 2^-120.
// Right for subnormals; NaN codes are not told apart (weights hold none, check_mxfp8_range).
__device__ inline uint32_t e4m3_bits(uint32_t spread) {  // codes in the high bytes of both halves
  return (spread & 0x80008000u) | ((spread >> 4) & 0x07f007f0u);
}

// bf16x2 of 2^(scale - 127 + 120) = 2^(e - 7), for e <= 134; above, the rest goes into a second factor.
struct E8m0Factor {
  uint32_t first;
  uint32_t second;  // 1.0 unless the scale exceeds 2^7
};
__device__ inline E8m0Factor e8m0_factor(uint32_t e) {
  const uint32_t low = min(e, 134u);
  return {(low + 120u) * 0x00800080u, (e - low + 127u) * 0x00800080u};
}

template <bool LARGE = true>
__device__ inline void decode_mxfp8(uint32_t codes, const E8m0Factor& f, uint32_t& b0, uint32_t& b1) {
  b0 = multiply_bf16x2(e4m3_bits(__byte_perm(codes, 0, 0x1404)), f.first);
  b1 = multiply_bf16x2(e4m3_bits(__byte_perm(codes, 0, 0x3424)), f.first);
  if constexpr (LARGE) {
    b0 = multiply_bf16x2(b0, f.second);
    b1 = multiply_bf16x2(b1, f.second);
  }
}

// bf16x2 of an E4M3 block scale times 2^118: with e2m1_bits, products come out times 2^-8 (kNvfp4Fold), which
// keeps every factor inside bf16's range; products lie in 2^-18 .. 2^4, so nothing is lost.
constexpr float kNvfp4Fold = 256.0F;
__device__ inline uint32_t nvfp4_scale(uint32_t code) {
  constexpr uint32_t kTwo119 = (119u + 127u) * 0x00800080u;
  return multiply_bf16x2(multiply_bf16x2(code * 0x00100010u, kTwo119), kTwo119);
}

// Four E2M1 codes in 16 bits to two bf16x2, times `scale`.
__device__ inline void decode_nvfp4(uint32_t codes, uint32_t scale, uint32_t& b0, uint32_t& b1) {
  // Codes 0 and 1 at bits 0 and 16, codes 2 and 3 at bits 8 and 24.
  const uint32_t x = codes | (codes << 12);
  b0 = multiply_bf16x2(((x << 12) & 0x80008000u) | ((x << 6) & 0x01c001c0u), scale);
  b1 = multiply_bf16x2(((x << 4) & 0x80008000u) | ((x >> 2) & 0x01c001c0u), scale);
}

// Bytes of a scale in shared memory: E8M0 as it is, or the bf16 of what nvfp4_scale gives.
template <WeightFormat F>
constexpr int kStoredScale = F == WeightFormat::kNVFP4 ? 2 : 1;

// Sixteen scales from `from` on, zeros from `count` on. `alignment`: of `from`, 16, 4 or 1.
__device__ inline uint4 sixteen_scales(const uint8_t* from, int count, int alignment) {
  uint32_t word[4] = {};
  if (alignment == 16 && count >= 16) return __ldg(reinterpret_cast<const uint4*>(from));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (alignment >= 4 && i * 4 + 4 <= count) {
      word[i] = __ldg(reinterpret_cast<const uint32_t*>(from) + i);
    } else {
      for (int j = i * 4; j < i * 4 + 4 && j < count; ++j) word[i] |= uint32_t{from[j]} << (j % 4 * 8);
    }
  }
  return {word[0], word[1], word[2], word[3]};
}

// Four bf16 of nvfp4_scale.
__device__ inline uint2 nvfp4_scales(uint32_t codes) {
  return {__byte_perm(nvfp4_scale(codes & 0xffu), nvfp4_scale((codes >> 8) & 0xffu), 0x5410),
          __byte_perm(nvfp4_scale((codes >> 16) & 0xffu), nvfp4_scale(codes >> 24), 0x5410)};
}

// Brings the scales of `reach` values of K from k0 on of ROWS rows from `first_row` on (rows past n repeat
// the last) to shared memory, row r at scales + r * stride (a multiple of 16, with room for a multiple of 16
// scales), zeros past K. True: this thread saw an E8M0 scale above 2^7.
template <WeightFormat F, int ROWS, int THREADS>
__device__ inline bool load_weight_scales(const GemmWeight& weight, int n, int k, int first_row, int k0,
                                          int reach, unsigned char* scales, int stride, int tid) {
  bool large = false;
  if constexpr (F != WeightFormat::kBF16) {
    constexpr int kBlock = WeightTraits<F>::kBlock;
    constexpr int kPerRow = THREADS / ROWS;  // threads of a row
    constexpr int kBatch = 4;
    const int per_row = k / kBlock;
    const int first = k0 / kBlock;
    const int count = min(per_row - first, reach / kBlock);
    const int units = (count + 15) / 16;
    const int r = tid / kPerRow;
    const uint8_t* from = weight.scales + static_cast<int64_t>(min(first_row + r, n - 1)) * per_row + first;
    const auto bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from));
    const int alignment = bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
    for (int begin = tid % kPerRow; begin < units; begin += kBatch * kPerRow) {
      uint4 codes[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = (begin + i * kPerRow) * 16;
        codes[i] = at < count ? sixteen_scales(from + at, count - at, alignment) : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int unit = begin + i * kPerRow;
        if (unit >= units) continue;
        if constexpr (F == WeightFormat::kNVFP4) {
          const uint2 a = nvfp4_scales(codes[i].x);
          const uint2 b = nvfp4_scales(codes[i].y);
          const uint2 c = nvfp4_scales(codes[i].z);
          const uint2 d = nvfp4_scales(codes[i].w);
          auto* to = reinterpret_cast<uint4*>(scales + r * stride + unit * 32);
          to[0] = {a.x, a.y, b.x, b.y};
          to[1] = {c.x, c.y, d.x, d.y};
        } else {
          *reinterpret_cast<uint4*>(scales + r * stride + unit * 16) = codes[i];
          // Bytes above 134 (0x86): byte-wise saturating comparison.
          large = large || __vcmpgtu4(codes[i].x, 0x86868686u) != 0 ||
                  __vcmpgtu4(codes[i].y, 0x86868686u) != 0 || __vcmpgtu4(codes[i].z, 0x86868686u) != 0 ||
                  __vcmpgtu4(codes[i].w, 0x86868686u) != 0;
        }
      }
    }
  }
  return large;
}

}  // namespace accord::kernels::cuda
