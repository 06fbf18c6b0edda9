#pragma once
// logprob_backward.hpp on CUDA, in stream order, for many rows at once: the CPU's bits before the last
// rounding. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// logits [rows, vocab] fp32; temperatures, tokens, entropies (token_logprobs' own), dlogprobs, dentropies
// [rows]; dlogits [rows, vocab] contiguous bf16, rounded once. The softmax statistics are computed again.
void logprob_backward(MatrixView logits, const float* temperatures, const int32_t* tokens,
                      const float* entropies, const float* dlogprobs, const float* dentropies, BF16* dlogits,
                      StreamHandle stream);

}  // namespace accord::kernels::cuda
