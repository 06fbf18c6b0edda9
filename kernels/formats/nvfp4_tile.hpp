#pragma once
// Internal to kernels/formats: one NVFP4 block of 16 columns and 1 or 16 rows, one element at a time.
#include <cmath>
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/formats/element.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/formats/nvfp4_scale.hpp"

namespace accord::formats {

// The multiplier k of a block with scale code s.
float nvfp4_multiplier(uint8_t s, const OuterScale& outer);

// The s code of a block: s6 or s4 under four over six. `values` are its elements, row by row.
uint8_t nvfp4_block_scale(const float* values, int rows, float block_amax, const OuterScale& outer,
                          FourOverSix mode);

// Quantizes one block; strides are those of x (elements), q (bytes) and scale (bytes) from row to row.
template <class T>
void quantize_nvfp4_tile(const T* x, int64_t x_stride, int rows, const OuterScale& outer, FourOverSix mode,
                         uint8_t* q, int64_t q_stride, uint8_t* scale, int64_t scale_stride,
                         QuantHealth* health) {
  constexpr int kBlock = 16;
  float values[kBlock * kBlock] = {};
  float block_amax = 0.0F;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < kBlock; ++i) {
      const float value = to_float(x[r * x_stride + i]);
      values[r * kBlock + i] = value;
      block_amax = std::fabs(value) > block_amax ? std::fabs(value) : block_amax;  // false for NaN
    }
  }
  const uint8_t s = nvfp4_block_scale(values, rows, block_amax, outer, mode);
  const float k = nvfp4_multiplier(s, outer);
  for (int r = 0; r < rows; ++r) {
    scale[r * scale_stride] = s;
    for (int i = 0; i < kBlock; i += 2) {
      uint8_t codes[2];
      for (int j = 0; j < 2; ++j) {
        const float value = values[r * kBlock + i + j];
        const float scaled = value * k;
        codes[j] = to_e2m1(scaled);
        if (health != nullptr) {
          health->nan += std::isnan(value) ? 1 : 0;
          health->saturated += std::fabs(scaled) > kE2M1Max ? 1 : 0;
          health->flushed += (value != 0.0F && (codes[j] & 0x7) == 0) ? 1 : 0;
        }
      }
      q[r * q_stride + i / 2] = static_cast<uint8_t>(codes[0] | (codes[1] << 4));
    }
  }
  if (health != nullptr && block_amax > health->amax) {
    health->amax = block_amax;
  }
}

}  // namespace accord::formats
