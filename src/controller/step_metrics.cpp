#include "controller/step_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace accord::controller {
namespace {

constexpr size_t kMaxQuoted = 400;  // characters of a prompt or response that a warning shows

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
  double reward_sum = 0.0;
  double length_sum = 0.0;
  double length_max = 0.0;
  double truncated = 0.0;
  for (const ScoredSample& sample : samples) {
    reward_sum += sample.reward;
    const double length = sample.rolled.summary.response_length;
    length_sum += length;
    length_max = std::max(length_max, length);
    truncated += sample.rolled.summary.truncated ? 1.0 : 0.0;
  }
  const double mean = reward_sum / count;
  double squares = 0.0;
  for (const ScoredSample& sample : samples) {
    squares += (sample.reward - mean) * (sample.reward - mean);
  }
  double zero_std = 0.0;
  for (size_t begin = 0; begin < samples.size(); begin += group_size) {
    zero_std += all_equal(samples.subspan(begin, group_size)) ? 1.0 : 0.0;
  }
  return {{"rollout/reward_mean", mean},
          {"rollout/reward_std", std::sqrt(squares / count)},
          {"rollout/response_length_mean", length_sum / count},
          {"rollout/response_length_max", length_max},
          {"rollout/truncated_fraction", truncated / count},
          {"rollout/zero_std_fraction", zero_std / (count / static_cast<double>(group_size))}};
}

std::string RewardWatch::observe(std::span<const ScoredSample> samples, std::span<const Prompt> prompts,
                                 std::span<const std::string> prompt_texts) {
  streak_ = all_equal(samples) ? streak_ + 1 : 0;
  if (streak_ != kPatience) {
    return "";
  }
  const ScoredSample& example = samples.front();
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
