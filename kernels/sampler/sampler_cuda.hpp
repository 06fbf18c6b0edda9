#pragma once
// Draws one token from each row of logits, on CUDA: the token and the bits that rollout/sampler.hpp draws on
// the CPU for the same logits, in stream order. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// What a row asks for, as SamplingParams and token_random say it.
struct DrawRequest {
  uint64_t random = 0;
  float temperature = 1.0F;  // 0: the largest logit
  float top_p = 1.0F;
  int32_t top_k = -1;  // -1: all
};

struct DrawResult {
  int32_t token = -1;
  float logprob = 0.0F;  // where bad_token is set, that logit
  float sampling_logprob = 0.0F;
  int32_t bad_token = -1;  // the first logit that is not finite, or
  int32_t overflow = 0;    // 1: the logits divided by the temperature overflow. Nothing was drawn then
};

inline constexpr int64_t kMaxDrawVocab = int64_t{1} << 18;

// logits [rows, vocab] fp32, vocab at most kMaxDrawVocab.
void draw_tokens(MatrixView logits, const DrawRequest* requests, DrawResult* results, StreamHandle stream);

// tokens[r] = the token of results[tasks[r]] for r < rows, but for tasks[r] < 0, which change nothing; 0
// where nothing was drawn.
void take_tokens(const DrawResult* results, const int32_t* tasks, int64_t rows, int32_t* tokens,
                 StreamHandle stream);

}  // namespace accord::kernels::cuda
