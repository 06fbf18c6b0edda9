#pragma once
// Internal to kernels/formats: one MXFP8 block, one element at a time.
#include <cmath>
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/formats/element.hpp"
#include "kernels/formats/element_decode.hpp"
#include "kernels/formats/health.hpp"

namespace accord::formats {

// x and q advance by their stride from one of the 32 elements to the next.
template <class T>
void quantize_mxfp8_block(const T* x, int64_t x_stride, uint8_t* q, int64_t q_stride, uint8_t* scale,
                          Element element, QuantHealth* health) {
  constexpr int kBlock = 32;
  const bool e4m3 = element == Element::kE4M3;
  float block_amax = 0.0F;
  for (int i = 0; i < kBlock; ++i) {
    const float magnitude = std::fabs(to_float(x[i * x_stride]));
    block_amax = magnitude > block_amax ? magnitude : block_amax;  // false for NaN
  }
  const uint8_t e = to_e8m0_up(block_amax * (e4m3 ? kInverseE4M3Max : kInverseE5M2Max));
  const float r = e == 254 ? 0x1p-127F : std::bit_cast<float>((254u - e) << 23);
  *scale = e;
  for (int i = 0; i < kBlock; ++i) {
    const float value = to_float(x[i * x_stride]);
    const float scaled = value * r;
    const uint8_t code = to_element(scaled, element);
    q[i * q_stride] = code;
    if (health != nullptr) {
      health->nan += std::isnan(value) ? 1 : 0;
      health->saturated += std::fabs(scaled) > (e4m3 ? kE4M3Max : kE5M2Max) ? 1 : 0;
      health->flushed += (value != 0.0F && (code & 0x7f) == 0) ? 1 : 0;
    }
  }
  if (health != nullptr && block_amax > health->amax) {
    health->amax = block_amax;
  }
}

}  // namespace accord::formats
