#pragma once
// Plain products of few rows and few columns on Hopper (gemm_narrow_sm90.cu). Not for other folders:
// gemm_cuda.hpp is the API.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/weight_format.hpp"
#include "device/stream_handle.hpp"

namespace accord::kernels::cuda {

struct ForwardParams;

constexpr size_t kMostNarrow = 3;
constexpr int64_t kMostNarrowRows = 128;

// Where large_products_available(); up to kMostNarrow products such as gemm_forward_together takes. False:
// too many tiles to end in one round of the multiprocessors, or other kernels are faster; nothing was
// launched.
bool launch_narrow(WeightFormat format, std::span<const ForwardParams> products, StreamHandle stream);

}  // namespace accord::kernels::cuda
