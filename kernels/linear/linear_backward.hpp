#pragma once
// What a linear layer's backward does around its matrix products (contract, section 5, high_precision):
//   dgrad  dx = bf16(dy) * bf16(w);   wgrad  dw = bf16(dy)^T * x,  accumulated in fp32.
// Operands are made here as fp32 values that bf16 holds exactly. With compute dtype float32 dy and x stay as
// they are; the weight is bf16(master) in both, as in the forward.
#include "device/tensor_view.hpp"

namespace accord::kernels {

// out (contiguous fp32) = in, rows in order; in is fp32 or bf16.
void widen(MatrixView in, float* out);

// out[i] = bf16(in[i]) as fp32; out may be in.
void round_to_bf16(const float* in, int64_t count, float* out);

}  // namespace accord::kernels
