#pragma once
// Draws one token from a row of logits.
//
//   w_i = exp(l_i / T - max)                       kernels/logprob, fp32
//   q_i = round(w_i * 2^40)                        integers: their sums have no order, so any device that
//                                                  has the same w draws the same token
//   top-k: the k largest logits stay               ties: the lower id stays
//   top-p: of those, the smallest set of largest logits with sum q >= ceil(p * sum q) stays
//   token = the first id, in ascending order, whose cumulative q exceeds floor(u * sum q / 2^64)
//
// Temperature 0 takes the largest logit (ties: the lowest id); its `logprob` is at temperature 1.
#include <cstdint>
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord::rollout {

struct DrawnToken {
  int32_t token = -1;
  float logprob = 0.0F;           // log-softmax(logits / T) over the whole vocabulary
  float sampling_logprob = 0.0F;  // of the distribution drawn from; 0 at temperature 0
};

// Reused between draws; one per thread.
struct SamplerScratch {
  std::vector<float> weights;
  std::vector<uint64_t> masses;
  std::vector<uint32_t> keys;
  std::vector<uint64_t> histogram;
};

// `random`: 64 uniform bits. An error names the first logit that is not finite.
StatusOr<DrawnToken> draw_token(std::span<const float> logits, const SamplingParams& params, uint64_t random,
                                SamplerScratch& scratch);

// The errors of draw_token, for samplers that run elsewhere.
Status logit_not_finite(int64_t token, float logit);
Status tempered_logits_overflow(float temperature);

// The random bits of the token at `position` (counted from the start of the prompt) of a sample.
uint64_t token_random(uint64_t run_seed, const SampleKey& key, int32_t position);

}  // namespace accord::rollout
