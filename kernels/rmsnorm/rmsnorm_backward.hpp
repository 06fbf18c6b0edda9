#pragma once
// Backward of y = x * inv_rms * weight, inv_rms = 1 / sqrt(mean(x^2) + eps), per row of width H:
//   g = dy * weight;  dx = inv_rms * g - x * inv_rms^3 / H * sum(g * x);  dweight += sum over rows dy * x *
//   inv_rms
// Roundings of the forward to the compute dtype are passed straight through.
#include "device/tensor_view.hpp"

namespace accord::kernels {

// x [R,H] fp32 or bf16; inv_rms [R]; dy_RH and dx_RH contiguous fp32. dx is added to what is there when
// `accumulate`, else overwritten; dx may be dy. dweight_H (fp32) is added to, rows in ascending order.
void rmsnorm_backward(MatrixView x_RH, const float* inv_rms, const BF16* weight_H, const float* dy_RH,
                      float* dx_RH, bool accumulate, float* dweight_H);

}  // namespace accord::kernels
