#pragma once
// What a rollout says about itself: rewards, lengths, truncation. Sums run in sample order.
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "controller/rollout_phase.hpp"

namespace accord::controller {

struct ScoredSample {
  RolledSample rolled;
  double reward = 0.0;   // the scorer's, with the penalty for overlong responses; NaN: it has none
  double penalty = 0.0;  // that part of the reward; 0 or less
  std::string pred;      // what the scorer took for the answer; empty: none
  std::string extra{};   // JSON object of an external scorer; empty: none
  bool failed = false;   // no score came
};

// rollout/reward_mean, reward_std (population), response_length_mean, response_length_max,
// truncated_fraction, zero_std_fraction (groups whose rewards are all equal). Groups are consecutive. Samples
// without a reward count in lengths only, their groups not in zero_std_fraction; where nothing is left to
// count, the metric is left out.
Metrics rollout_metrics(std::span<const ScoredSample> samples, size_t group_size);

// Without the groups in which a sample has no reward: what is left has an advantage. Ascending.
std::vector<size_t> in_whole_groups(std::span<const ScoredSample> samples, std::span<const size_t> chosen,
                                    size_t group_size);

// Warns when the rewards of several consecutive steps are all equal: such steps teach nothing, and mostly
// mean that a label, a template or a stop token is wrong.
class RewardWatch {
 public:
  static constexpr int kPatience = 3;  // steps
  // A warning with an example, once per such streak; empty otherwise.
  std::string observe(std::span<const ScoredSample> samples, std::span<const Prompt> prompts,
                      std::span<const std::string> prompt_texts);

 private:
  int streak_ = 0;
};

}  // namespace accord::controller
