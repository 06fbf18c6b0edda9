#pragma once
// What a rollout says about itself: rewards, lengths, truncation. Sums run in sample order.
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "controller/rollout_phase.hpp"

namespace accord::controller {

struct ScoredSample {
  RolledSample rolled;
  double reward = 0.0;   // the scorer's, with the penalty for overlong responses
  double penalty = 0.0;  // that part of the reward; 0 or less
  std::string pred;      // what the scorer took for the answer; empty: none
  std::string extra{};   // JSON object of an external scorer; empty: none
  bool failed = false;   // no score came: the reward is reward.failure_score's
};

// rollout/reward_mean, reward_std (population), response_length_mean, response_length_max,
// truncated_fraction, zero_std_fraction (groups whose rewards are all equal). Groups are consecutive.
Metrics rollout_metrics(std::span<const ScoredSample> samples, size_t group_size);

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
