#pragma once
// embedding.hpp on CUDA: the same bits, in stream order. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// tokens [num_tokens] on the device, each in [0, V).
void embed_rows(const BF16* table, const int32_t* tokens, int64_t num_tokens, MatrixView y,
                StreamHandle stream);

void add_rows(MatrixView x, MatrixView delta, MatrixView y, StreamHandle stream);

}  // namespace accord::kernels::cuda
