#pragma once
// What a step reports about its tokens. Sums run over samples and tokens in order, in double; NaN stays NaN.
#include <cstdint>
#include <span>
#include <vector>

#include "base/flow.hpp"

namespace accord::trainer {

// One response token of a step.
struct TokenRecord {
  double loss = 0.0;  // policy, KL and entropy terms, times the token's weight in the batch
  double kl = 0.0;    // of the chosen estimator against the reference
  float logprob = 0.0F;
  float entropy = 0.0F;
  float old_logprob = 0.0F;
  float rollout_logprob = 0.0F;
  double importance = 1.0;
  bool importance_bounded = false;  // at the bound, or masked
  bool clipped = false;
  bool dual_clipped = false;
};

// train/clip_fraction, clip_fraction_dual, entropy, ppo_kl (mean of old - new log-prob), ref_kl (when
// `has_reference`), importance_mean and importance_clip_fraction (when `corrected`: of the importance
// weights, and the share of tokens whose weight is at its bound or masked); and mismatch/*:
//   d = train - rollout log-prob, w = exp(d):  kl_k1 = mean(-d);  kl_k3 = mean(w - 1 - d);
//   ess_ratio = (sum w)^2 / (n sum w^2);  equal_fraction: tokens whose two log-probs have the same bits
Metrics token_metrics(std::span<const TokenRecord> tokens, bool has_reference, bool corrected = false);

}  // namespace accord::trainer
