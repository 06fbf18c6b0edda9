#pragma once
// Steps on disk: writing the batch of a step (debug.dump_batches), and training on batches that a run wrote
// (debug.mode train_only).
#include <cstdint>
#include <string>
#include <vector>

#include "controller/pools.hpp"
#include "controller/run_inputs.hpp"
#include "controller/step_batch.hpp"
#include "controller/step_metrics.hpp"

namespace accord::controller {

// Fetches the step's samples from their holders (they keep them) and writes `path`. `job` says what is
// trained on, and with which advantages.
Status record_step(const RunInputs& inputs, const Pools& pools, std::span<const ScoredSample> samples,
                   const TrainJob& job, const std::string& build, const std::string& path);

// Every batch that steps first..last need is there and fits the recipe's group size and temperature; before
// anything starts. Batches of another precision plan are allowed, with a warning in the log.
Status check_recorded_steps(const RunInputs& inputs, uint64_t first, uint64_t last);

// The samples of a batch, as the rollout phase would have returned them. No texts.
StatusOr<std::vector<ScoredSample>> load_recorded_step(const std::string& path);

}  // namespace accord::controller
