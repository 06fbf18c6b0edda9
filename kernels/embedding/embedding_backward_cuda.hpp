#pragma once
// embedding_backward.hpp on CUDA, in stream order: the CPU's bits. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"

namespace accord::kernels::cuda {

// The batch's rows by token: token tokens[i] stands at rows[offsets[i]] .. rows[offsets[i + 1] - 1],
// ascending. The host, which knows the tokens, makes it. dx [T,H] contiguous fp32; dtable [V,H] fp32 is added
// to.
struct TokenRows {
  const int32_t* tokens = nullptr;   // [count] different tokens
  const int32_t* offsets = nullptr;  // [count + 1]
  const int32_t* rows = nullptr;     // [T]
  int32_t count = 0;
};
void embedding_backward(const TokenRows& batch, const float* dx, int64_t hidden, float* dtable,
                        StreamHandle stream);

}  // namespace accord::kernels::cuda
