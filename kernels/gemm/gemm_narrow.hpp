#pragma once
// Plain products of few rows and few columns on Hopper (gemm_narrow_sm90.cu). Not for other folders:
// gemm_cuda.hpp is the API.
#include "base/weight_format.hpp"
#include "device/stream_handle.hpp"

namespace accord::kernels::cuda {

struct ForwardParams;

// Where large_products_available(); what gemm_forward takes, neither grouped nor batched. False: too many
// tiles to end in one round of the multiprocessors, or other kernels are faster; nothing was launched.
bool launch_narrow(WeightFormat format, const ForwardParams& p, StreamHandle stream);

}  // namespace accord::kernels::cuda
