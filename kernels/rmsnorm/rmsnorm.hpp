#pragma once
// Root-mean-square norm over the last axis, as Hugging Face computes it:
//   inv = 1 / sqrt(sum(x^2) / n + eps)      fp32, sixteen-lane order (math/simd.hpp)
//   y   = weight * T(x * inv)               T: the dtype of x; both roundings happen
#include <cstdint>

#include "device/tensor_view.hpp"

namespace accord::kernels {

// x, y: [rows, n], bf16 or fp32, the same dtype; weight [n]. y may be x. inv_rms [rows], may be null.
void rms_norm(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms);

}  // namespace accord::kernels
