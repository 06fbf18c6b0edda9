#pragma once
// The operands of a linear layer's backward (contract, section 5):
//   dgrad  dx = dy w;   wgrad  dw = dy^T x,  accumulated in fp32 over
//
//   mode            dy (dgrad)       w                        dy (wgrad)        x
//   high_precision  bf16(dy)         bf16(master)             bf16(dy)          x
//   dequantized     bf16(dy)         bf16(decoded Q_row(w))   bf16(dy)          bf16(decoded Q_row(x))
//   quantized       MXFP8 by rows    MXFP8 by columns         MXFP8 by columns  MXFP8 by columns
//
// With compute dtype float32 dy and x are not rounded before. Operands are fp32 values, contiguous. Nothing
// allocates; `scratch` has backward_operand_scratch(cols) floats.
#include <cstdint>

#include "device/tensor_view.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/linear/linear.hpp"

namespace accord::kernels {

// out (contiguous fp32) = in, rows in order; in is fp32 or bf16.
void widen(MatrixView in, float* out);

// out[i] = bf16(in[i]) as fp32; out may be in.
void round_to_bf16(const float* in, int64_t count, float* out);

int64_t backward_operand_scratch(int64_t cols);

// out[rows,cols] = bf16(decoded Q_row(x)), quantized as the forward quantizes x (NVFP4: per token). Not for
// BF16. out may be x.
void decoded_activation(const float* x, int64_t rows, int64_t cols, const ActivationFormat& format,
                        float* out, float* scratch);

// out[count,K] = bf16(decoded rows [begin, begin + count) of w); not for BF16.
void decoded_weight(const LinearWeight& w, int64_t begin, int64_t count, float* out);

// out[rows,cols] = decoded Q(x) in MXFP8. Along columns the rows are padded with zero rows to a multiple of
// 32; the padding decodes to zero and is not written. out may be x.
void mxfp8_operand(const float* x, int64_t rows, int64_t cols, formats::Axis axis, formats::Element element,
                   float* out, float* scratch);

}  // namespace accord::kernels
