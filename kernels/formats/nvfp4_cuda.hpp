#pragma once
// nvfp4.hpp and amax.hpp on CUDA: the same bytes, in stream order. All pointers are the device's; shapes as
// there.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/nvfp4_types.hpp"

namespace accord::formats::cuda {

// Floats of scratch that one call needs. Calls on one stream may share it.
constexpr int64_t kAmaxScratch = 4096;

// result[0] = max |x|, or the larger of that and what result[0] holds: the amax of a unit of several tensors.
void amax(MatrixView x, float* result, bool accumulate, float* scratch, StreamHandle stream);

// `shared_amax` as in nvfp4.hpp, on the device. `scratch` [kAmaxScratch] for scope tensor without it. Outputs
// are aligned to 8 bytes. Scope token reads x once, scope tensor twice (once with shared_amax).
void quantize_nvfp4(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out,
                    const float* shared_amax, float* scratch, StreamHandle stream, BF16* operand = nullptr);
// Whether a token's row fits into a block's registers, aligned to 16 bytes: then `operand` [rows, cols] may
// get the products E2M1 * E4M3 in the same launch (expand_nvfp4 of gemm/gemm_cuda.hpp).
bool fuses_operand(MatrixView x);

}  // namespace accord::formats::cuda
