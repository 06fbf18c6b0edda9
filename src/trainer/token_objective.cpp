#include "trainer/token_objective.hpp"

#include "trainer/objective.hpp"

namespace accord::trainer {

TokenGradient token_objective(const recipe::AlgorithmPart& algorithm, const TokenContext& context,
                              const TokenValue& value, TokenRecord& record) {
  record.logprob = value.logprob;
  record.entropy = value.entropy;
  record.old_logprob = context.old_logprob;
  record.rollout_logprob = context.rollout_logprob;
  const ClipRange clip{algorithm.clip_low, algorithm.clip_high, algorithm.clip_dual};
  const TokenLoss policy = policy_loss(value.logprob, context.old_logprob, context.advantage, clip);
  record.clipped = policy.clipped;
  record.dual_clipped = policy.dual_clipped;
  record.loss = policy.loss;
  TokenGradient gradient{policy.derivative, 0.0};
  if (algorithm.importance_correction != recipe::ImportanceCorrection::kNone) {
    const Importance importance =
        importance_weight(algorithm.importance_correction, context.old_logprob, context.rollout_logprob);
    record.importance = importance.weight;
    record.importance_bounded = importance.bounded;
    record.loss *= importance.weight;
    gradient.dlogprob *= importance.weight;
  }
  if (context.ref_logprob) {
    const TokenKl kl = token_kl(algorithm.kl_estimator, value.logprob, *context.ref_logprob);
    record.kl = kl.value;
    if (algorithm.kl_coefficient != 0.0) {
      record.loss += algorithm.kl_coefficient * kl.value;
      gradient.dlogprob += algorithm.kl_coefficient * kl.derivative;
    }
  }
  if (algorithm.entropy_coefficient != 0.0) {
    record.loss -= algorithm.entropy_coefficient * value.entropy;
    gradient.dentropy = -algorithm.entropy_coefficient * context.weight;
  }
  record.loss *= context.weight;
  gradient.dlogprob *= context.weight;
  return gradient;
}

}  // namespace accord::trainer
