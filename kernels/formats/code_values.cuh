#pragma once
// What codes and scales stand for, in fp32, exact (docs/contract.md, sections 1 to 3), and with them the
// operands of products: BF16 values for what a quantizer stored.
#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace accord::gpu {

constexpr float kQuietNan = __builtin_nanf("");

__device__ inline float e4m3_value(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t sign = (code & 0x80u) << 24;
  if (magnitude == 0x7fu) return kQuietNan;
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9F;
    return __uint_as_float(__float_as_uint(value) | sign);
  }
  return __uint_as_float(sign | ((magnitude << 20) + (120u << 23)));
}

__device__ inline float e5m2_value(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t sign = (code & 0x80u) << 24;
  if (magnitude > 0x7cu) return kQuietNan;
  if (magnitude == 0x7cu) return __uint_as_float(sign | 0x7f800000u);
  if (magnitude < 4) {
    const float value = static_cast<float>(magnitude) * 0x1p-16F;
    return __uint_as_float(__float_as_uint(value) | sign);
  }
  return __uint_as_float(sign | ((magnitude << 21) + (112u << 23)));
}

__device__ inline float e8m0_value(uint32_t code) {
  if (code == 0) return __uint_as_float(0x00400000u);
  return code == 255 ? kQuietNan : __uint_as_float(code << 23);
}

__device__ inline float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7u;
  const float value = magnitude < 2 ? 0.5F * static_cast<float>(magnitude)
                                    : __uint_as_float(((magnitude + 252u) << 22));  // (126 + m/2) << 23
  return __uint_as_float(__float_as_uint(value) | ((code & 8u) << 28));
}

// Four MXFP8 codes (E4M3, or E5M2) under the scale 2^(e-127), as four bf16: exact from 2^-117 on, else
// rounded.
template <bool kE5M2>
__device__ inline uint2 mxfp8_operand(uint32_t codes, uint32_t e) {
  const float scale = e8m0_value(e);
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = (codes >> (8 * i)) & 0xffu;
    x[i] = (kE5M2 ? e5m2_value(code) : e4m3_value(code)) * scale;
  }
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
}

// Eight NVFP4 codes times their block's scale, without the outer one: exact.
__device__ inline uint4 nvfp4_operand(uint32_t codes, float scale) {
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = e2m1_value((codes >> (4 * i)) & 15u) * scale;
  }
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
}

}  // namespace accord::gpu
