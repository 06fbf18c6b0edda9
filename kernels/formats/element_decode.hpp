#pragma once
// Internal to kernels/formats: the decoders of element.hpp as constexpr functions, which host and device
// share.
#include <bit>
#include <cstdint>

namespace accord::formats {

constexpr uint32_t kInfBits = 0x7f800000u;
constexpr uint32_t kQuietNan = 0x7fc00000u;

// fl(1/448) and fl(1/57344).
constexpr float kInverseE4M3Max = std::bit_cast<float>(0x3b124925u);
constexpr float kInverseE5M2Max = std::bit_cast<float>(0x37924925u);

constexpr float decode_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float sign = (code & 0x80u) ? -1.0F : 1.0F;
  if (magnitude == 0x7fu) {
    return std::bit_cast<float>(kQuietNan);
  }
  if (magnitude < 8) {
    return sign * static_cast<float>(magnitude) * 0x1p-9F;
  }
  return std::bit_cast<float>(((code & 0x80u) << 24) | ((magnitude << 20) + (120u << 23)));
}

constexpr float decode_e8m0(uint32_t code) {
  if (code == 0) {
    return std::bit_cast<float>(0x00400000u);
  }
  return std::bit_cast<float>(code == 255 ? kQuietNan : code << 23);
}

constexpr float decode_e5m2(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t sign = (code & 0x80u) << 24;
  if (magnitude > 0x7cu) {
    return std::bit_cast<float>(kQuietNan);
  }
  if (magnitude == 0x7cu) {
    return std::bit_cast<float>(sign | kInfBits);
  }
  if (magnitude < 4) {
    const float value = static_cast<float>(magnitude) * 0x1p-16F;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 21) + (112u << 23)));
}

constexpr float decode_e2m1(uint32_t code) {
  // The code's exponent and fraction, where fp32 has its own: a subnormal for 0.5.
  return std::bit_cast<float>(((code & 0x8u) << 28) | ((code & 0x7u) << 22)) * 0x1p126F;
}

}  // namespace accord::formats
