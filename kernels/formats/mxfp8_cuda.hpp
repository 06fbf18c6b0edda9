#pragma once
// mxfp8.hpp on CUDA: the same bytes, in stream order. All pointers are the device's; shapes as there, the
// outputs aligned to 8 bytes. Both copies of one tensor come out of one pass over it.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/element.hpp"

namespace accord::formats::cuda {

// operand [rows, cols] (or null): what was stored, as BF16, in the same launch (expand_mxfp8 of
// gemm/gemm_cuda.hpp).
void quantize_mxfp8_rows(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream,
                         BF16* operand = nullptr);
void quantize_mxfp8_cols(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream);

// rows % 32 == 0 and cols % 32 == 0.
void quantize_mxfp8_both(MatrixView x, uint8_t* row_q, uint8_t* row_scale, uint8_t* col_q, uint8_t* col_scale,
                         Element element, StreamHandle stream);

}  // namespace accord::formats::cuda
