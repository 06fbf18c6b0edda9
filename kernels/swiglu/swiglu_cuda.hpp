#pragma once
// swiglu.hpp on CUDA: the same bits, in stream order, and fused with the quantizer that reads its result: the
// bytes are those of the two steps. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/nvfp4_types.hpp"

namespace accord::kernels::cuda {

void swiglu(MatrixView gate, MatrixView up, MatrixView y, StreamHandle stream);

// The fused forms take what rms_norm_mxfp8 and rms_norm_nvfp4 take (rmsnorm_cuda.hpp): bf16, aligned rows
// whose length fuses_rows accepts. y (data null: none) gets the values themselves, operand (or null) what was
// stored as products take it.
void swiglu_mxfp8(MatrixView gate, MatrixView up, MatrixView y, uint8_t* q, uint8_t* scale,
                  StreamHandle stream, BF16* operand = nullptr);
void swiglu_nvfp4(MatrixView gate, MatrixView up, MatrixView y, const formats::Nvfp4Output& out,
                  FourOverSix four_over_six, int range, StreamHandle stream, BF16* operand = nullptr);

}  // namespace accord::kernels::cuda
