#pragma once
// Backward of the rotary embedding, a rotation by the negative angle (a = dy[i], b = dy[i + d/2]):
//   dx[i] = a cos + b sin;   dx[i + d/2] = b cos - a sin
#include <cstdint>

#include "kernels/rope/rope.hpp"

namespace accord::kernels {

// In place on contiguous fp32 rows [rows, heads * head_dim]; row t was turned by positions[t].
void rope_backward(float* dy, int64_t rows, int64_t width, const int32_t* positions, const RopeTable& table);

}  // namespace accord::kernels
