#include "controller/step_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace accord::controller {
namespace {

constexpr size_t kMaxQuoted = 400;  // characters of a prompt or response that a warning shows

bool has_reward(const ScoredSample& sample) { return !std::isnan(sample.reward); }

bool all_have_rewards(std::span<const ScoredSample> samples) {
  return std::all_of(samples.begin(), samples.end(), has_reward);
}

bool all_equal(std::span<const ScoredSample> samples) {
  return std::all_of(samples.begin(), samples.end(),
                     [&](const ScoredSample& s) { return s.reward == samples.front().reward; });
}

std::string quoted(const std::string& text) {
  return text.size() <= kMaxQuoted ? text : text.substr(0, kMaxQuoted) + "...";
}

}  // namespace

Metrics rollout_metrics(std::span<const ScoredSample> samples, size_t group_size) {
  const auto count = static_cast<double>(samples.size());
  double rewards = 0.0;
  double reward_sum = 0.0;
  double length_sum = 0.0;
  double length_max = 0.0;
  double truncated = 0.0;
  for (const ScoredSample& sample : samples) {
    if (has_reward(sample)) {
      reward_sum += sample.reward;
      rewards += 1.0;
    }
    const double length = sample.rolled.summary.response_length;
    length_sum += length;
    length_max = std::max(length_max, length);
    truncated += sample.rolled.summary.truncated ? 1.0 : 0.0;
  }
  const double mean = reward_sum / rewards;
  double squares = 0.0;
  for (const ScoredSample& sample : samples) {
    squares += has_reward(sample) ? (sample.reward - mean) * (sample.reward - mean) : 0.0;
  }
  double groups = 0.0;
  double zero_std = 0.0;
  for (size_t begin = 0; begin < samples.size(); begin += group_size) {
    const auto group = samples.subspan(begin, group_size);
    if (all_have_rewards(group)) {
      groups += 1.0;
      zero_std += all_equal(group) ? 1.0 : 0.0;
    }
  }
  Metrics metrics{{"rollout/response_length_mean", length_sum / count},
                  {"rollout/response_length_max", length_max},
                  {"rollout/truncated_fraction", truncated / count}};
  if (rewards > 0.0) {
    metrics["rollout/reward_mean"] = mean;
    metrics["rollout/reward_std"] = std::sqrt(squares / rewards);
  }
  if (groups > 0.0) {
    metrics["rollout/zero_std_fraction"] = zero_std / groups;
  }
  return metrics;
}

std::vector<size_t> in_whole_groups(std::span<const ScoredSample> samples, std::span<const size_t> chosen,
                                    size_t group_size) {
  std::vector<size_t> kept;
  for (const size_t i : chosen) {
    if (all_have_rewards(samples.subspan(i - i % group_size, group_size))) {
      kept.push_back(i);
    }
  }
  return kept;
}

std::string RewardWatch::observe(std::span<const ScoredSample> samples, std::span<const Prompt> prompts,
                                 std::span<const std::string> prompt_texts) {
  std::vector<ScoredSample> scored;
  std::copy_if(samples.begin(), samples.end(), std::back_inserter(scored), has_reward);
  if (scored.empty()) {
    return "";  // neither equal nor different
  }
  streak_ = all_equal(scored) ? streak_ + 1 : 0;
  if (streak_ != kPatience) {
    return "";
  }
  const ScoredSample& example = scored.front();
  const size_t p = example.rolled.prompt;
  return fmt::format(
      "all rewards of the last {} steps are equal ({}): nothing is learned. Check reward.type, the labels, "
      "data.chat_template and the stop tokens. For example:\n  prompt:   {}\n  response: {}\n  label:    "
      "{}\n  "
      "answer found: {}",
      kPatience, example.reward, quoted(prompt_texts[p]), quoted(example.rolled.summary.response_text),
      prompts[p].label, example.pred.empty() ? "none" : example.pred);
}

}  // namespace accord::controller
