#pragma once
// swiglu_backward.hpp on CUDA, in stream order: the CPU's bits before the last rounding. All pointers are the
// device's.
#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// gate, up [R,I] bf16; dact [R,I] contiguous fp32; dgate, dup [R,I] contiguous bf16: operands of the products
// that follow, rounded once.
void swiglu_backward(MatrixView gate, MatrixView up, const float* dact, BF16* dgate, BF16* dup,
                     StreamHandle stream);

}  // namespace accord::kernels::cuda
