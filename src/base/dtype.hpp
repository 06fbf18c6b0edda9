#pragma once
// Storage types of dense tensors, and bfloat16 as a value type.
#include <bit>
#include <cstdint>
#include <string_view>

namespace accord {

enum class Dtype : uint8_t { kF32, kBF16, kU8, kI32, kI64, kF16, kF64, kBool, kI8, kF8E4M3, kF8E5M2, kI16 };

constexpr int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kBF16:
    case Dtype::kF16:
    case Dtype::kI16:
      return 2;
    case Dtype::kU8:
    case Dtype::kBool:
    case Dtype::kI8:
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2:
      return 1;
  }
  return 0;
}

// bfloat16 storage; conversion rounds to nearest even and keeps NaN a (quiet) NaN.
struct BF16 {
  uint16_t bits = 0;
};
static_assert(sizeof(BF16) == 2);

constexpr float to_float(BF16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
constexpr float to_float(float x) { return x; }

constexpr BF16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    return BF16{static_cast<uint16_t>((u >> 16) | 0x40u)};
  }
  return BF16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

template <class T>
constexpr T from_float(float x) {
  if constexpr (sizeof(T) == sizeof(BF16)) {
    return to_bf16(x);
  } else {
    return x;
  }
}

}  // namespace accord
