#pragma once
// Backward of the rotary embedding, a rotation by the negative angle (a = dy[i], b = dy[i + d/2]):
//   dx[i] = a cos + b sin;   dx[i + d/2] = b cos - a sin
#include <cstdint>

#include "kernels/rope/rope.hpp"

namespace accord::kernels {

// In place on contiguous fp32 rows [rows, heads * head_dim]; row t was turned by positions[t].
void rope_backward(float* dy, int64_t rows, int64_t width, const int32_t* positions, const RopeTable& table);

// Backward of apply_rope_heads on contiguous fp32 rows: dx [rows, x_width] and dy [rows, y_width], the first
// head's rotary columns at x_offset and y_offset. Writes those columns of dx. With x_stride 0 all heads of dy
// share them (one rotary key for all heads): their turned-back gradients are summed in ascending order.
struct RopeHeadsBackward {
  RopeHeads layout;
  const float* dy = nullptr;
  int64_t y_width = 0;
  int64_t y_offset = 0;
  float* dx = nullptr;
  int64_t x_width = 0;
  int64_t x_offset = 0;
};
void rope_heads_backward(const RopeHeadsBackward& args, int64_t rows, const int32_t* positions,
                         const RopeTable& table);

}  // namespace accord::kernels
