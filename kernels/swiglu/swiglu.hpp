#pragma once
// y = silu(gate) * up = gate / (1 + exp(-gate)) * up, computed in fp32 (exp of math.hpp) and rounded once to
// the dtype of y. (Hugging Face rounds silu(gate) to the compute dtype first; in fp32 there is no
// difference.)
#include "device/tensor_view.hpp"

namespace accord::kernels {

// gate, up, y: [rows, cols], one dtype, bf16 or fp32. y may be gate or up.
void swiglu(MatrixView gate, MatrixView up, MatrixView y);

}  // namespace accord::kernels
