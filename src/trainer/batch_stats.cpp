#include "trainer/batch_stats.hpp"

#include <bit>
#include <cmath>

namespace accord::trainer {

Metrics token_metrics(std::span<const TokenRecord> tokens, bool has_reference, bool corrected) {
  double clipped = 0.0, dual = 0.0, entropy = 0.0, kl = 0.0, ppo_kl = 0.0;
  double importance = 0.0, importance_clipped = 0.0;
  double abs_sum = 0.0, abs_max = 0.0, k1 = 0.0, k3 = 0.0, equal = 0.0, weights = 0.0, squares = 0.0;
  for (const TokenRecord& t : tokens) {
    clipped += t.clipped ? 1.0 : 0.0;
    dual += t.dual_clipped ? 1.0 : 0.0;
    entropy += t.entropy;
    kl += t.kl;
    ppo_kl -= static_cast<double>(t.logprob) - static_cast<double>(t.old_logprob);
    importance += t.importance;
    importance_clipped += t.importance_bounded ? 1.0 : 0.0;
    const double d = static_cast<double>(t.logprob) - static_cast<double>(t.rollout_logprob);
    const double w = std::exp(d);
    abs_sum += std::abs(d);
    if (!(std::abs(d) <= abs_max)) abs_max = std::abs(d) + 0.0 * abs_max;  // a NaN enters and stays
    k1 -= d;
    k3 += w - 1.0 - d;
    weights += w;
    squares += w * w;
    equal += std::bit_cast<uint32_t>(t.logprob) == std::bit_cast<uint32_t>(t.rollout_logprob) ? 1.0 : 0.0;
  }
  const double n = static_cast<double>(tokens.size());
  Metrics metrics;
  metrics["train/clip_fraction"] = clipped / n;
  metrics["train/clip_fraction_dual"] = dual / n;
  metrics["train/entropy"] = entropy / n;
  metrics["train/ppo_kl"] = ppo_kl / n;
  if (has_reference) metrics["train/ref_kl"] = kl / n;
  if (corrected) {
    metrics["train/importance_mean"] = importance / n;
    metrics["train/importance_clip_fraction"] = importance_clipped / n;
  }
  metrics["mismatch/logprob_abs_diff_mean"] = abs_sum / n;
  metrics["mismatch/logprob_abs_diff_max"] = abs_max;
  metrics["mismatch/kl_k1"] = k1 / n;
  metrics["mismatch/kl_k3"] = k3 / n;
  metrics["mismatch/equal_fraction"] = equal / n;
  metrics["mismatch/ess_ratio"] = weights * weights / (n * squares);
  return metrics;
}

}  // namespace accord::trainer
