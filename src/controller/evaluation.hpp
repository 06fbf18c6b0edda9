#pragma once
// Held-out evaluation on the rollout pool.
#include "base/flow.hpp"
#include "base/status.hpp"
#include "controller/pools.hpp"
#include "controller/run_inputs.hpp"

namespace accord::controller {

// The sampling parameters of training rollouts, as the recipe says.
SamplingParams training_sampling(const RunInputs& inputs);

// eval/<name>/pass1 (the mean over prompts and samples of "the score is above 0": 0..1), reward_mean,
// response_length_mean, truncated_fraction, and reward_failures (the share without a score, which never
// passes) where the recipe lets failures score. Draws depend on (seed, set, step), not on the pool.
StatusOr<Metrics> evaluate_set(const RunInputs& inputs, const Pools& pools, size_t set, uint64_t step,
                               uint64_t weight_version);

}  // namespace accord::controller
