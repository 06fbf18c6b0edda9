#pragma once
// The GRPO objective as pure functions in double: group advantages, the clipped policy loss, KL estimators,
// aggregation, and what they say about a batch. Derivatives are with respect to the new log-prob.
// NaN inputs give NaN results.
//
// Sources: GRPO advantages (DeepSeekMath, arXiv 2402.03300); clip-higher and token-mean aggregation (DAPO,
// arXiv 2503.14476); dual clip (arXiv 1912.09729); k1, k2, k3 (Schulman, "Approximating KL divergence",
// 2020); truncated importance sampling (Ionides, "Truncated importance sampling", 2008) and masked.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "recipe/recipe.hpp"

namespace accord::trainer {

inline constexpr double kStdEpsilon = 1e-6;
inline constexpr double kMaxLogRatio = 20.0;  // |log pi_new - log pi_old| above it is clamped, gradient 0
inline constexpr double kMaxLowVarianceKl = 10.0;
inline constexpr double kMaxImportance = 2.0;

// `rewards` holds groups of `group_size` consecutive samples; `advantages` has the same size.
//   kStd          (r - mean) / (unbiased std + 1e-6)
//   kMean         r - mean
//   kLeaveOneOut  r - mean of the others
// A group of one is compared with mean 0 and std 1: its advantage is its reward (over 1 + 1e-6 for kStd).
void group_advantages(recipe::AdvantageKind kind, std::span<const double> rewards, int64_t group_size,
                      std::span<double> advantages);

// Indices of the samples whose group's rewards are not all equal, in order. Whole groups stay or go.
std::vector<size_t> samples_that_vary(std::span<const double> rewards, int64_t group_size);

// What DAPO's soft punishment (arXiv 2503.14476, section 3.4) adds to the reward of a response of n tokens
// under a limit of L, with a buffer of B <= L:
//   0 while n <= L - B;   factor (L - B - n) / B up to n = L;   -factor for a truncated one.
double overlong_penalty(const recipe::OverlongPenalty& penalty, int64_t response_length, int64_t limit,
                        bool truncated);

struct ClipRange {
  double low = 0.2;            // ratio >= 1 - low
  double high = 0.28;          // ratio <= 1 + high
  std::optional<double> dual;  // > 1: with a negative advantage the loss is at most -dual * A
};

struct TokenLoss {
  double loss = 0.0;
  double derivative = 0.0;
  bool clipped = false;       // the clipped branch is the larger one
  bool dual_clipped = false;  // negative advantage, and the bound is below the clipped loss
};

// max(-r A, -clip(r, 1-low, 1+high) A) with r = exp(clamp(new - old, +-20)).
TokenLoss policy_loss(double new_logprob, double old_logprob, double advantage, const ClipRange& clip);

struct Importance {
  double weight = 1.0;
  bool bounded = false;  // tis: at the bound; mis: masked
};

// Of r = exp(old - rollout), how much more likely the trainer's policy, before the step's first update, makes
// the token than the sampler did:
//   none  1;  tis  min(r, 2);  mis  r where 1/2 <= r <= 2, and 0 elsewhere.
Importance importance_weight(recipe::ImportanceCorrection correction, double old_logprob,
                             double rollout_logprob);

struct TokenKl {
  double value = 0.0;
  double derivative = 0.0;
};

// KL(new || ref) of one token with d = new - ref:
//   k1 d;  k2 d^2/2;  k3 exp(-d) - 1 + d (d clamped to +-20);  low variance: k3 clamped to +-10.
TokenKl token_kl(recipe::KlEstimator estimator, double new_logprob, double ref_logprob);

// The factor of one token's loss in the batch's loss. Samples without a response count nowhere.
double token_weight(recipe::Aggregate aggregate, int64_t response_length, int64_t batch_tokens,
                    int64_t batch_samples);

}  // namespace accord::trainer
