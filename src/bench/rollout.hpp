#pragma once
// Rollout with random weights of exact shapes: tokens per second of the engine, and their share of the
// roofline of the plan in use.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "bench/kernels.hpp"
#include "bench/roofline.hpp"
#include "device/device.hpp"

namespace accord::bench {

struct RolloutOptions {
  Device device;
  std::string shape;
  std::vector<std::string> formats;  // planned_policy
  std::vector<int32_t> batches;
  int64_t context = 2048;  // positions of each sequence when it is measured, about
  int64_t layers = 0;      // 0: all, or as many as fit into memory
  int64_t steps = 32;      // decode steps that are timed
  int threads = 0;         // of the CPU; 0: one per core
};

struct RolloutResult {
  std::string format;
  int32_t batch = 0;
  int64_t steps = 0;                                     // timed ones
  double mean_context = 0.0;                             // positions that a timed step attends to, on average
  double seconds = 0.0;                                  // of the timed steps
  double forward_seconds = 0.0, sampling_seconds = 0.0;  // of which; the rest is the host's
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0.0;  // until every sequence decodes
  double step_bytes = 0.0;      // of the roofline
  double roofline_tokens_per_second = 0.0;
  int64_t peak_bytes = 0;  // of the device's memory; on the CPU of the process

  double tokens_per_second() const { return batch * static_cast<double>(steps) / seconds; }
};

struct RolloutReport {
  std::string device;
  std::string shape;
  std::string note;
  int64_t layers = 0, all_layers = 0;
  Ceilings ceilings;  // copy and read
  std::vector<RolloutResult> results;
};

// Errors: usage (an unknown shape or format, a context that the model does not reach), those of a config.json
// or a recipe, memory.
StatusOr<RolloutReport> run_rollout(const RolloutOptions& options, const Print& print);

}  // namespace accord::bench
