#pragma once
// One rollout phase: prompts are spread over the pool, samples come back as summaries, in an order that
// does not depend on the pool's size or on who finished first.
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "controller/pools.hpp"

namespace accord::controller {

struct RolledSample {
  SampleSummary summary;
  size_t prompt = 0;  // index into the phase's prompts
  size_t worker = 0;  // rollout rank that holds the trajectory
};

struct RolloutPhase {
  uint64_t step = 0;  // of the sample keys
  std::span<const Prompt> prompts;
  int32_t num_samples = 1;
  SamplingParams sampling;
  bool keep = false;
  Millis timeout{0};
};

// All samples, by prompt, then by sample index. Each must come exactly once and be of `weight_version`.
// `on_progress` (may be empty) is called with the number of finished samples, from any thread, one at a time.
StatusOr<std::vector<RolledSample>> roll_out(const Pools& pools, const RolloutPhase& phase,
                                             uint64_t weight_version,
                                             const std::function<void(size_t)>& on_progress);

}  // namespace accord::controller
