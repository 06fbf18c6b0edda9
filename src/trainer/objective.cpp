#include "trainer/objective.hpp"

#include <algorithm>
#include <cmath>

namespace accord::trainer {

namespace {

double mean_of(std::span<const double> values) {
  double sum = 0.0;
  for (double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double unbiased_std(std::span<const double> values, double mean) {
  double sum = 0.0;
  for (double v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

// std::clamp with NaN kept.
double clamp_value(double x, double low, double high) { return x < low ? low : (x > high ? high : x); }

}  // namespace

void group_advantages(recipe::AdvantageKind kind, std::span<const double> rewards, int64_t group_size,
                      std::span<double> advantages) {
  const size_t size = static_cast<size_t>(group_size);
  const double n = static_cast<double>(group_size);
  for (size_t begin = 0; begin + size <= rewards.size(); begin += size) {
    const auto group = rewards.subspan(begin, size);
    // A group of one is compared with mean 0 and standard deviation 1.
    const double mean = size > 1 ? mean_of(group) : 0.0;
    const double std = size > 1 ? unbiased_std(group, mean) : 1.0;
    const double divisor = kind == recipe::AdvantageKind::kStd ? std + kStdEpsilon : 1.0;
    for (size_t i = 0; i < size; ++i) {
      double& out = advantages[begin + i];
      if (kind != recipe::AdvantageKind::kLeaveOneOut) {
        out = (group[i] - mean) / divisor;
      } else {
        out = size > 1 ? (group[i] - mean) * n / (n - 1.0) : group[i];
      }
    }
  }
}

std::vector<size_t> samples_that_vary(std::span<const double> rewards, int64_t group_size) {
  const size_t size = static_cast<size_t>(group_size);
  std::vector<size_t> kept;
  for (size_t begin = 0; begin + size <= rewards.size(); begin += size) {
    const auto group = rewards.subspan(begin, size);
    if (std::all_of(group.begin(), group.end(), [&](double r) { return r == group[0]; })) continue;
    for (size_t i = begin; i < begin + size; ++i) kept.push_back(i);
  }
  return kept;
}

double overlong_penalty(const recipe::OverlongPenalty& penalty, int64_t response_length, int64_t limit,
                        bool truncated) {
  if (truncated) return -penalty.factor;
  const int64_t over = response_length - (limit - penalty.buffer_tokens);
  if (over <= 0) return 0.0;
  return -penalty.factor *
         std::min(1.0, static_cast<double>(over) / static_cast<double>(penalty.buffer_tokens));
}

TokenLoss policy_loss(double new_logprob, double old_logprob, double advantage, const ClipRange& clip) {
  const double raw_log_ratio = new_logprob - old_logprob;
  const double log_ratio = clamp_value(raw_log_ratio, -kMaxLogRatio, kMaxLogRatio);
  const double ratio = std::exp(log_ratio);
  const double plain = -advantage * ratio;
  const double bounded = -advantage * clamp_value(ratio, 1.0 - clip.low, 1.0 + clip.high);
  TokenLoss result;
  result.clipped = bounded > plain;
  // A NaN makes both sides NaN and every comparison false, so it is kept.
  result.loss = result.clipped ? bounded : plain;
  result.derivative = result.clipped || std::abs(raw_log_ratio) > kMaxLogRatio ? 0.0 : plain;
  if (clip.dual && advantage < 0.0) {
    const double bound = -advantage * *clip.dual;
    if (bound < result.loss) {
      result.dual_clipped = true;
      result.loss = bound;
      result.derivative = 0.0;
    }
  }
  return result;
}

Importance importance_weight(recipe::ImportanceCorrection correction, double old_logprob,
                             double rollout_logprob) {
  if (correction == recipe::ImportanceCorrection::kNone) return {};
  const double ratio = std::exp(old_logprob - rollout_logprob);
  if (correction == recipe::ImportanceCorrection::kTis) {
    return {clamp_value(ratio, 0.0, kMaxImportance), ratio >= kMaxImportance};
  }
  // A NaN is neither inside nor outside, and is kept.
  const bool outside = ratio > kMaxImportance || ratio < 1.0 / kMaxImportance;
  return {outside ? 0.0 : ratio, outside};
}

TokenKl token_kl(recipe::KlEstimator estimator, double new_logprob, double ref_logprob) {
  const double d = new_logprob - ref_logprob;
  if (std::isnan(d)) return {d, d};
  if (estimator == recipe::KlEstimator::kK1) return {d, 1.0};
  if (estimator == recipe::KlEstimator::kK2) return {0.5 * d * d, d};
  const double clamped = clamp_value(d, -kMaxLogRatio, kMaxLogRatio);
  const double ratio = std::exp(-clamped);
  TokenKl kl{ratio - 1.0 + clamped, clamped == d ? 1.0 - ratio : 0.0};
  if (estimator == recipe::KlEstimator::kLowVariance) {
    const double bounded = clamp_value(kl.value, -kMaxLowVarianceKl, kMaxLowVarianceKl);
    if (bounded != kl.value) kl.derivative = 0.0;
    kl.value = bounded;
  }
  return kl;
}

double token_weight(recipe::Aggregate aggregate, int64_t response_length, int64_t batch_tokens,
                    int64_t batch_samples) {
  switch (aggregate) {
    case recipe::Aggregate::kTokenMean:
      return 1.0 / static_cast<double>(batch_tokens);
    case recipe::Aggregate::kSeqMeanTokenMean:
      return 1.0 / (static_cast<double>(batch_samples) * static_cast<double>(response_length));
    case recipe::Aggregate::kSeqMeanTokenSum:
      return 1.0 / static_cast<double>(batch_samples);
  }
  return std::nan("");
}

}  // namespace accord::trainer
