#pragma once
// Staging of weight rows in shared memory as they lie in device memory, and their exact decoding into the B
// fragments of mma m16n8k16.
//
// The order of elements inside a group of 16 is free, if A and B agree: lane t of a quad takes the elements
// 4t .. 4t+3 of a group (the instruction calls them 2t, 2t+1, 2t+8, 2t+9), which lie side by side.
#include "base/weight_format.hpp"
#include "kernels/gemm/mma.cuh"

namespace accord::kernels::cuda {

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
  static constexpr int kScaleBytes = Traits::kBlock == 0 ? 0 : BK / (Traits::kBlock == 0 ? 1 : Traits::kBlock);
  static constexpr int kScaleWords = kScaleBytes == 0 ? 0 : (kScaleBytes + 3) / 4 + 1;
  static constexpr int kScaleOffset = BN * kRowStride;
  static constexpr int kBytes = (kScaleOffset + BN * kScaleWords * 4 + 15) / 16 * 16;
};

// E4M3 code pairs (bytes 0 and 1 of `codes` for the first, 2 and 3 for the second) as bf16x2 times 2^-120. Right
// for subnormals; NaN codes are not told apart (weights hold none, check_mxfp8_range).
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

__device__ inline void decode_mxfp8(uint32_t codes, const E8m0Factor& f, uint32_t& b0, uint32_t& b1) {
  b0 = multiply_bf16x2(e4m3_bits(__byte_perm(codes, 0, 0x1404)), f.first);
  b1 = multiply_bf16x2(e4m3_bits(__byte_perm(codes, 0, 0x3424)), f.first);
  if (f.second != 0x3f803f80u) {
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

}  // namespace accord::kernels::cuda
