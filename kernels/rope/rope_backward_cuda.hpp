#pragma once
// rope_backward.hpp on CUDA, in stream order: the CPU's bits. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/rope/rope_cuda.hpp"

namespace accord::kernels::cuda {

// dy [T, heads * 2 * half] contiguous fp32 -> dx, the same shape: fp32 (may be dy) or bf16 (rounded once).
void rope_backward(const float* dy, int64_t rows, int64_t width, const int32_t* positions,
                   const RopeTableView& table, MatrixView dx, StreamHandle stream);

// RopeHeadsBackward (rope_backward.hpp); dx fp32 or bf16, only the rotary columns of it are written.
// `x_stride` 0: all heads of dy share them, summed in ascending order.
struct RopeHeadsBackward {
  RopeHeadsLayout layout;
  const float* dy = nullptr;  // [T, y_width]
  int64_t y_width = 0;
  int64_t y_offset = 0;
  MatrixView dx;  // [T, x_width]
  int64_t x_offset = 0;
};
void rope_heads_backward(const RopeHeadsBackward& args, int64_t rows, const int32_t* positions,
                         const RopeTableView& table, StreamHandle stream);

}  // namespace accord::kernels::cuda
