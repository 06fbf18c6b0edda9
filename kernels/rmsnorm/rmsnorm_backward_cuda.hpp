#pragma once
// rmsnorm_backward.hpp on CUDA, in stream order. All pointers are the device's. Sums run in a fixed order
// that depends on the shape alone; it is not the CPU's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// Floats of scratch that one call needs: partial weight gradients of fixed row blocks.
int64_t rmsnorm_backward_scratch(int64_t rows, int64_t width);

// x [R,H] bf16; dy [R,H] contiguous fp32; dx [R,H]: fp32 (added to with `accumulate`, may be dy) or bf16 (one
// rounding, not accumulated); dweight [H] fp32 is added to.
void rmsnorm_backward(MatrixView x, const float* inv_rms, const BF16* weight, const float* dy, MatrixView dx,
                      bool accumulate, float* dweight, float* scratch, StreamHandle stream);

}  // namespace accord::kernels::cuda
