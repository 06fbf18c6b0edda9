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

void rope_heads_backward(const RopeHeadsBackward& args, int64_t rows, const int32_t* positions,
                         const RopeTable& table) {
  const int64_t half = table.head_dim() / 2;
  const bool neighbours = args.layout.pairs == RopePairs::kNeighbours;
  for (int64_t t = 0; t < rows; ++t) {
    const float* cos = table.cos(positions[t]);
    const float* sin = table.sin(positions[t]);
    const float* dy = args.dy + t * args.y_width + args.y_offset;
    float* dx = args.dx + t * args.x_width + args.x_offset;
    for (int64_t h = 0; h < args.layout.heads; ++h, dy += args.layout.y_stride, dx += args.layout.x_stride) {
      const bool add = args.layout.x_stride == 0 && h > 0;
      for (int64_t i = 0; i < half; ++i) {
        const float a = dy[i] * cos[i] + dy[half + i] * sin[i];
        const float b = dy[half + i] * cos[i] - dy[i] * sin[i];
        float& first = dx[neighbours ? 2 * i : i];
        float& second = dx[neighbours ? 2 * i + 1 : half + i];
        first = add ? first + a : a;
        second = add ? second + b : b;
      }
    }
  }
}

}  // namespace accord::kernels
