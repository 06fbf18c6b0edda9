#pragma once
// Where the kernels of kernels/rmsnorm take a row from.
#include "kernels/formats/row_kernel.cuh"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"

namespace accord::gpu {

// Of bf16 rows, which must be such as row_kernel.cuh takes.
inline RowInput<BF16> norm_input(MatrixView x, const BF16* weight, float eps, float* inv_rms,
                                 const kernels::cuda::Residual& residual) {
  const auto takes = [&](const MatrixView& rows) {
    return rows.dtype == Dtype::kBF16 && is_vectorizable(rows) && rows.cols == x.cols && rows.rows >= x.rows;
  };
  require(takes(x) && fits_rows(x.cols), "bf16 rows, aligned to 16 bytes, whose length fuses_rows accepts");
  RowInput<BF16> in{static_cast<const BF16*>(x.data), x.stride, nullptr, 0, weight, eps, inv_rms, nullptr, 0};
  const auto& [delta, sum] = residual;
  if (delta.data != nullptr) {
    require(takes(delta) && takes(sum), "delta and sum like x");
    in.up = static_cast<const BF16*>(delta.data);
    in.up_stride = delta.stride;
    in.sum = static_cast<BF16*>(sum.data);
    in.sum_stride = sum.stride;
  }
  return in;
}

}  // namespace accord::gpu
