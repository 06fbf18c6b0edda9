#pragma once
// The words of fragments.hpp, for host and device. Codes lie where few instructions make bf16 of them: the
// two of a register in both halves alike, most of them a rotation away from where bf16 has sign, exponent and
// mantissa.
#include <cstdint>

#include "kernels/math/host_device.hpp"

namespace accord::kernels {

namespace fragment_words {

// Of E2M1 codes: sign and the other three bits to where a word has them, and back.
ACCORD_HOST_DEVICE inline uint32_t put(uint32_t code, int sign, int others) {
  return (code >> 3 & 1U) << sign | (code & 7U) << others;
}
ACCORD_HOST_DEVICE inline uint32_t take(uint32_t word, int sign, int others) {
  return (word >> sign & 1U) << 3 | (word >> others & 7U);
}
// What is left of a half when it has three codes: sign at 3, exponent at 1 and 0, mantissa at 4.
ACCORD_HOST_DEVICE inline uint32_t put_last(uint32_t code) {
  return (code & 8U) | (code >> 1 & 3U) | (code & 1U) << 4;
}
ACCORD_HOST_DEVICE inline uint32_t take_last(uint32_t half) {
  return (half & 8U) | (half & 3U) << 1 | (half >> 4 & 1U);
}

ACCORD_HOST_DEVICE inline uint32_t rotate_right(uint32_t word, int by) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(word, word, by);
#else
  return word >> by | word << (32 - by);
#endif
}

}  // namespace fragment_words

// Four E2M1 codes of row g and four of row g + 8, as they lie, to a word and back.
ACCORD_HOST_DEVICE inline uint32_t nvfp4_fragment_word(uint32_t c, uint32_t d) {
  using fragment_words::put;
  using fragment_words::put_last;
  return put(c, 15, 6) | put(c >> 4, 31, 22) | put(c >> 8, 18, 9) | put(c >> 12, 2, 25) | put(d, 21, 12) |
         put(d >> 4, 5, 28) | put_last(d >> 8) | put_last(d >> 12) << 16;
}
ACCORD_HOST_DEVICE inline void nvfp4_fragment_codes(uint32_t word, uint32_t& c, uint32_t& d) {
  using fragment_words::take;
  using fragment_words::take_last;
  c = take(word, 15, 6) | take(word, 31, 22) << 4 | take(word, 18, 9) << 8 | take(word, 2, 25) << 12;
  d = take(word, 21, 12) | take(word, 5, 28) << 4 | take_last(word) << 8 | take_last(word >> 16) << 12;
}

// Pairs of codes as the bits of bf16x2, 2^-126 times their values: 0 and 1 of row g, the same of row g + 8,
// 2 and 3 of row g, of row g + 8 (as mma m16n8k16 counts its registers).
ACCORD_HOST_DEVICE inline void nvfp4_fragment_bits(uint32_t word, uint32_t (&bits)[4]) {
  using fragment_words::rotate_right;
  constexpr uint32_t kPlaces = 0x81c081c0U;
  bits[0] = word & kPlaces;
  bits[1] = rotate_right(word, 6) & kPlaces;
  bits[2] = rotate_right(word, 3) & kPlaces;
  // Exponent up by 7, mantissa by 2, sign by 12: no two of the three copies meet.
  bits[3] = ((word & 0x001b001bU) * 0x1084U) & kPlaces;
}

// Four E4M3 codes, as they lie, to a word and back.
ACCORD_HOST_DEVICE inline uint32_t mxfp8_fragment_word(uint32_t c) {
  // Codes 0 and 1: sign at 15, others at 4, of each half.
  const uint32_t first = (c & 0x80U) << 8 | (c & 0x7fU) << 4 | (c & 0x8000U) << 16 | (c & 0x7f00U) << 12;
  // Codes 2 and 3: their upper four bits at 0 of a half; of the other half the fourth at 11, the last at 12.
  const uint32_t x = c >> 16;
  const uint32_t second = (x & 0xf0U) >> 4 | (x & 0xf000U) << 4 | (x & 0x8U) << 24 | (x & 0x7U) << 28 |
                          (x & 0x800U) | (x & 0x700U) << 4;
  return first | second;
}
ACCORD_HOST_DEVICE inline uint32_t mxfp8_fragment_codes(uint32_t word) {
  const uint32_t first =
      (word & 0x8000U) >> 8 | (word & 0x7f0U) >> 4 | (word >> 16 & 0x8000U) | (word & 0x07f00000U) >> 12;
  const uint32_t second = (word & 0xfU) << 4 | (word & 0xf0000U) >> 4 | (word >> 24 & 0x8U) |
                          (word >> 28 & 0x7U) | (word & 0x800U) | (word & 0x7000U) >> 4;
  return first | second << 16;
}

// Codes 0 and 1, and 2 and 3, as the bits of bf16x2, 2^-120 times their values.
ACCORD_HOST_DEVICE inline void mxfp8_fragment_bits(uint32_t word, uint32_t (&bits)[2]) {
  using fragment_words::rotate_right;
  bits[0] = word & 0x87f087f0U;
  bits[1] = (rotate_right(word, 24) & 0x07700770U) | (rotate_right(word, 20) & 0x80808080U);
}

}  // namespace accord::kernels
