// Rewards of a step, some of which did not come.
#include "controller/step_metrics.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace accord::controller {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::vector<ScoredSample> samples_of(const std::vector<double>& rewards) {
  std::vector<ScoredSample> samples(rewards.size());
  for (size_t i = 0; i < rewards.size(); ++i) {
    samples[i].reward = rewards[i];
    samples[i].failed = std::isnan(rewards[i]);
    samples[i].rolled.summary.response_length = static_cast<int32_t>(i) + 1;
  }
  return samples;
}

}  // namespace

TEST_CASE("samples without a reward count in lengths only") {
  const Metrics metrics = rollout_metrics(samples_of({1, 3, kNone, 2, 4, 4}), 2);
  CHECK(metrics.at("rollout/reward_mean") == 14.0 / 5.0);
  CHECK(std::abs(metrics.at("rollout/reward_std") - std::sqrt((46.0 - 196.0 / 5.0) / 5.0)) < 1e-12);
  CHECK(metrics.at("rollout/zero_std_fraction") == 0.5);
  CHECK(metrics.at("rollout/response_length_mean") == 3.5);
}

TEST_CASE("a step without rewards has no reward metrics") {
  const Metrics metrics = rollout_metrics(samples_of({kNone, kNone}), 2);
  CHECK(metrics.count("rollout/reward_mean") == 0);
  CHECK(metrics.count("rollout/reward_std") == 0);
  CHECK(metrics.count("rollout/zero_std_fraction") == 0);
  CHECK(metrics.at("rollout/response_length_max") == 2.0);
}

TEST_CASE("groups with a missing reward are left out whole") {
  const auto samples = samples_of({1, 3, kNone, 2, 4, 4, 5, kNone});
  const std::vector<size_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  CHECK((in_whole_groups(samples, all, 2) == std::vector<size_t>{0, 1, 4, 5}));
  const std::vector<size_t> some = {2, 3, 4, 5};
  CHECK((in_whole_groups(samples, some, 2) == std::vector<size_t>{4, 5}));
  CHECK(in_whole_groups(samples, all, 8).empty());
}

TEST_CASE("missing rewards are neither equal nor different") {
  RewardWatch watch;
  const std::vector<Prompt> prompts(1);
  const std::vector<std::string> texts{"q"};
  for (int i = 1; i < RewardWatch::kPatience; ++i) {
    CHECK(watch.observe(samples_of({2, kNone, 2}), prompts, texts).empty());
    CHECK(watch.observe(samples_of({kNone, kNone}), prompts, texts).empty());
  }
  CHECK(watch.observe(samples_of({kNone, 2}), prompts, texts).find("equal (2)") != std::string::npos);
}

}  // namespace accord::controller
