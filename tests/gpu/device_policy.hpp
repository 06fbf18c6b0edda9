#pragma once
// A policy's weights in an arena of the device, as a worker has them: masters, the precision plan, the export
// into an arena of the host, and its bytes copied up.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/weight_format.hpp"
#include "device/memory.hpp"
#include "gpu.hpp"
#include "model/forward.hpp"
#include "precision/plan.hpp"
#include "weights/arena.hpp"

namespace gpu_test {

struct DevicePolicy {
  accord::ModelConfig config;
  accord::precision::PrecisionPlan plan;
  accord::WeightManifest manifest;
  std::unique_ptr<accord::weights::Arena> host;  // what was exported
  accord::Memory arena;                          // the same bytes on the device

  // Bound to the arena of the device (for CudaModel) and to the host's (for Model).
  accord::model::PolicyWeights weights() const;
  accord::model::PolicyWeights host_weights() const;
};

// The folder of the tests' data; the environment variable ACCORD_TEST_DATA names another one.
std::string test_data();

// A checkpoint of tests/data/hf ("qwen3_moe"), or random weights for a config. Every weight that the plan may
// quantize has `format`.
DevicePolicy checkpoint_policy(const Gpu& gpu, const std::string& name, accord::WeightFormat format);
DevicePolicy random_policy(const Gpu& gpu, const accord::ModelConfig& config, accord::WeightFormat format,
                           uint64_t seed);

// A plan with every such weight in `format`, but for names that match `high_precision`.
accord::precision::PrecisionPlan uniform_plan(const accord::ModelConfig& config, accord::WeightFormat format,
                                              const std::vector<std::string>& high_precision = {});

}  // namespace gpu_test
