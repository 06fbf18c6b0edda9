#pragma once
// fragments.hpp on the GPU.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

namespace accord::kernels::cuda {

// weights[i].fragments (written, fragments_bytes each, 16-byte aligned) from weights[i].data and .scales, for
// `count` weights [N,K] of one format, an array on the device. takes_fragments(format, n, k).
void to_fragments(WeightFormat format, int64_t n, int64_t k, const GemmWeight* weights, int32_t count,
                  StreamHandle stream);

}  // namespace accord::kernels::cuda
