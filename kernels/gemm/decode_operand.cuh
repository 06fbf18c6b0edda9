#pragma once
// Codes and scales of quantized weights as gemm_decode.cuh finds them, to the 16-row operand of mma m16n8k16.
#include "kernels/gemm/fragment_words.hpp"
#include "kernels/gemm/weight_fragment.cuh"

namespace accord::kernels::cuda {

// Four E2M1 codes in 16 bits, times a scale (of nvfp4_scale), as bf16x2 of codes 0 and 2 and of 1 and 3. A
// code at bit 0 of a half times 2^12 + 2^6 has its sign where bf16 has it, and its other bits at the end of
// the exponent and the start of the mantissa. HIGH: which half of `scales` is the scale.
template <bool HIGH>
__device__ inline void decode_nvfp4_even_odd(uint32_t codes, uint32_t scales, uint32_t& even, uint32_t& odd) {
  const uint32_t x = __byte_perm(codes, 0, 0x4140);
  even = multiply_by_half<HIGH>(((x & 0x000f000fu) * 0x1040u) & 0x81c081c0u, scales);
  odd = multiply_by_half<HIGH>(((x & 0x00f000f0u) * 0x0104u) & 0x81c081c0u, scales);
}

// E4M3 block scales as nvfp4_scale gives them: of two groups of rows r and r + 8 (bytes r, r; r + 8, r + 8),
// those of a group together, row r's in the low half.
__device__ inline uint2 nvfp4_scale_pairs(uint32_t codes) {
  constexpr uint32_t kTwo119 = (119u + 127u) * 0x00800080u;
  const auto scaled = [](uint32_t x) { return multiply_bf16x2(multiply_bf16x2(x, kTwo119), kTwo119); };
  return {scaled((codes & 0x00ff00ffu) << 4), scaled((codes & 0xff00ff00u) >> 4)};
}

// The operand of a group from its word in fragment order.
__device__ inline void decode_nvfp4_fragment(uint32_t word, uint32_t scales, uint32_t (&w)[4]) {
  uint32_t bits[4];
  nvfp4_fragment_bits(word, bits);
  w[0] = multiply_by_half<false>(bits[0], scales);
  w[1] = multiply_by_half<true>(bits[1], scales);
  w[2] = multiply_by_half<false>(bits[2], scales);
  w[3] = multiply_by_half<true>(bits[3], scales);
}

// Four E4M3 codes times a power of two, as bf16x2 of codes 0 and 2 and of 1 and 3.
template <bool LARGE>
__device__ inline void decode_mxfp8_even_odd(uint32_t codes, const E8m0Factor& f, uint32_t& even,
                                             uint32_t& odd) {
  even = multiply_bf16x2(((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u), f.first);
  odd = multiply_bf16x2((codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u), f.first);
  if constexpr (LARGE) {
    even = multiply_bf16x2(even, f.second);
    odd = multiply_bf16x2(odd, f.second);
  }
}

// The same of codes 0 and 1, and of 2 and 3, from their word in fragment order.
template <bool LARGE>
__device__ inline void decode_mxfp8_fragment(uint32_t word, const E8m0Factor& f, uint32_t& first,
                                             uint32_t& last) {
  uint32_t bits[2];
  mxfp8_fragment_bits(word, bits);
  first = multiply_bf16x2(bits[0], f.first);
  last = multiply_bf16x2(bits[1], f.first);
  if constexpr (LARGE) {
    first = multiply_bf16x2(first, f.second);
    last = multiply_bf16x2(last, f.second);
  }
}

}  // namespace accord::kernels::cuda
