#include "kernels/rope/rope_backward.hpp"

namespace accord::kernels {

void rope_backward(float* dy, int64_t rows, int64_t width, const int32_t* positions, const RopeTable& table) {
  const int64_t half = table.head_dim() / 2;
  for (int64_t t = 0; t < rows; ++t) {
    const float* cos = table.cos(positions[t]);
    const float* sin = table.sin(positions[t]);
    for (float* head = dy + t * width; head < dy + (t + 1) * width; head += 2 * half) {
      for (int64_t i = 0; i < half; ++i) {
        const float a = head[i];
        const float b = head[half + i];
        head[i] = a * cos[i] + b * sin[i];
        head[half + i] = b * cos[i] - a * sin[i];
      }
    }
  }
}

}  // namespace accord::kernels
