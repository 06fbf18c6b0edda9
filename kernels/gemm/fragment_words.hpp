#pragma once
// The words of fragments.hpp, for host and device.
#include <cstdint>

#include "kernels/math/host_device.hpp"

namespace accord::kernels {

// Four E2M1 codes of row g and four of row g + 8, as they lie, to a word and back.
ACCORD_HOST_DEVICE inline uint32_t nvfp4_fragment_word(uint32_t c, uint32_t d) {
  // Half bytes 0 and 2 to places 0 and 1.
  const auto even = [](uint32_t x) { return (x & 0xfu) | (x >> 4 & 0xf0u); };
  return even(c) | even(d) << 8 | even(c >> 4) << 16 | even(d >> 4) << 24;
}
ACCORD_HOST_DEVICE inline void nvfp4_fragment_codes(uint32_t word, uint32_t& c, uint32_t& d) {
  const auto spread = [](uint32_t x) { return (x & 0xfu) | (x & 0xf0u) << 4; };
  c = spread(word) | spread(word >> 16) << 4;
  d = spread(word >> 8) | spread(word >> 24) << 4;
}

// Bytes 0 1 2 3 to 0 2 1 3; its own inverse.
ACCORD_HOST_DEVICE inline uint32_t mxfp8_fragment_word(uint32_t c) {
  return (c & 0xff0000ffu) | (c & 0x0000ff00u) << 8 | (c & 0x00ff0000u) >> 8;
}

}  // namespace accord::kernels
