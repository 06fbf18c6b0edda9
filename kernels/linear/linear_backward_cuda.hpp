#pragma once
// Operands of a linear layer's backward (linear_backward.hpp) on CUDA that no other op makes: BF16 values in
// stream order. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/element.hpp"

namespace accord::kernels::cuda {

// y = bf16(x), contiguous; x fp32.
void round_to_bf16(const float* x, int64_t count, BF16* y, StreamHandle stream);

// out = bf16 of the decoded MXFP8 of x along columns: blocks of 32 rows of one column. With `groups`, rows
// [offsets[g], offsets[g+1]) are quantized as a matrix of their own (of one expert), padded with zero rows to
// a multiple of 32; offsets [groups + 1] lie on the device and cover all rows. groups 0: all rows are one. x:
// fp32 or bf16; fp32 values are rounded to bf16 before (bf16(master)).
void mxfp8_columns(MatrixView x, const int32_t* offsets, int32_t groups, formats::Element element, BF16* out,
                   StreamHandle stream);

}  // namespace accord::kernels::cuda
