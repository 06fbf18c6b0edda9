// draw_tokens over the rollout room's sampler: the device draws what that draws.
#include <algorithm>
#include <cmath>

#include "kernels/sampler/sampler_cuda.hpp"
#include "rollout/sampler.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {

void draw_tokens(MatrixView logits, const DrawRequest* requests, DrawResult* results, StreamHandle stream) {
  if (emulation::recorded(stream, draw_tokens, logits, requests, results)) return;
  const emulation::Launch launch("draw_tokens", stream);
  constexpr int64_t kMaxVocab = int64_t{1} << 18;
  launch.needs(logits.dtype == Dtype::kF32 && logits.cols > 0 && logits.cols <= kMaxVocab,
               "fp32 logits of at most 2^18 tokens");
  if (logits.rows == 0) return;
  const MatrixView in = launch.at(logits);
  const DrawRequest* request = launch.at(requests, in.rows);
  DrawResult* result = launch.at(results, in.rows);
  rollout::SamplerScratch scratch;
  for (int64_t r = 0; r < in.rows; ++r) {
    const std::span<const float> row(in.row<float>(r), static_cast<size_t>(in.cols));
    result[r] = {};
    const auto bad = std::find_if(row.begin(), row.end(), [](float x) { return !std::isfinite(x); });
    if (bad != row.end()) {
      result[r].bad_token = static_cast<int32_t>(bad - row.begin());
      result[r].logprob = *bad;
      continue;
    }
    SamplingParams params;
    params.temperature = request[r].temperature;
    params.top_p = request[r].top_p;
    params.top_k = request[r].top_k;
    const auto drawn = rollout::draw_token(row, params, request[r].random, scratch);
    if (drawn.ok()) {
      result[r].token = drawn->token;
      result[r].logprob = drawn->logprob;
      result[r].sampling_logprob = drawn->sampling_logprob;
    } else {
      result[r].overflow = 1;
    }
  }
}

void take_tokens(const DrawResult* results, const int32_t* tasks, int64_t rows, int32_t* tokens,
                 StreamHandle stream) {
  if (emulation::recorded(stream, take_tokens, results, tasks, rows, tokens)) return;
  const emulation::Launch launch("take_tokens", stream);
  const int32_t* task = launch.maybe(tasks, rows);
  int32_t* token = launch.maybe(tokens, rows);
  for (int64_t r = 0; r < rows; ++r) {
    if (task[r] >= 0) token[r] = std::max(launch.at(results + task[r], 1)->token, 0);
  }
}

}  // namespace accord::kernels::cuda
