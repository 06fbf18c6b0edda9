#pragma once
// Backward of act = silu(gate) * up, silu(g) = g * s, s = 1 / (1 + exp(-g)), per element:
//   dup = dact * silu(gate);  dgate = dact * up * s * (1 + gate * (1 - s))
#include "device/tensor_view.hpp"

namespace accord::kernels {

// gate, up [R,I] fp32 or bf16 (same dtype); dact, dgate, dup contiguous fp32 [R,I]. dup may be dact.
void swiglu_backward(MatrixView gate_RI, MatrixView up_RI, const float* dact_RI, float* dgate_RI,
                     float* dup_RI);

}  // namespace accord::kernels
