#pragma once
// logprob.hpp on CUDA: the same bits, in stream order, for many rows at once. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// Row r of logits [rows, vocab] fp32 has temperature temperatures[r] > 0 and the token tokens[r] in [0,
// vocab). Outputs [rows], each of which may be null: the token's log-probability, and the row's entropy in
// nats.
void token_logprobs(MatrixView logits, const float* temperatures, const int32_t* tokens, float* logprobs,
                    float* entropies, StreamHandle stream);

}  // namespace accord::kernels::cuda
