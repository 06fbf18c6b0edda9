#pragma once
// Samples -> what a scorer wants to know of them -> rewards.
#include <span>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "controller/rollout_phase.hpp"
#include "controller/run_inputs.hpp"

namespace accord::controller {

// Where a prompt of a phase comes from.
struct PromptSource {
  const text::Dataset* data = nullptr;
  int64_t index = 0;
};

// One reward per sample, in their order; finite, or NaN where it failed and has none. `set` names what they
// were drawn for ("train", an evaluation set); `sources[p]` is where the phase's prompt p comes from. A
// score that is not finite is a data error.
StatusOr<std::vector<reward::Reward>> score_samples(const RunInputs& inputs, const std::string& set,
                                                    uint64_t step, std::span<const RolledSample> samples,
                                                    std::span<const PromptSource> sources);

// <prefix>reward_failures: the share of samples without a score; empty where a failure is an error.
Metrics failure_metrics(const RunInputs& inputs, const std::string& prefix,
                        std::span<const reward::Reward> rewards);

}  // namespace accord::controller
