#pragma once
// One response token's part of the batch's loss, and its exact derivatives:
//
//   weight (c L_policy + kl_coefficient KL - entropy_coefficient H)
//
// L_policy, KL and the weight are those of objective.hpp. c is the importance weight of the sampler's
// log-prob (1 without a correction) and is a constant for the derivatives. H is the entropy of the token's
// whole distribution at the sample's temperature; its derivative with respect to the logits is in
// kernels/logprob/logprob_backward.hpp. A term whose coefficient is 0 is left out, so that it cannot spoil
// the loss.
#include <optional>

#include "recipe/recipe.hpp"
#include "trainer/backend.hpp"
#include "trainer/batch_stats.hpp"

namespace accord::trainer {

struct TokenContext {
  float old_logprob = 0.0F;  // the denominator of the ratio
  float rollout_logprob = 0.0F;
  std::optional<float> ref_logprob;
  double advantage = 0.0;
  double weight = 0.0;  // token_weight(): in the global batch
};

// Fills the record of the token. NaN stays NaN.
TokenGradient token_objective(const recipe::AlgorithmPart& algorithm, const TokenContext& context,
                              const TokenValue& value, TokenRecord& record);

}  // namespace accord::trainer
