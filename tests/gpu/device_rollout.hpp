#pragma once
// A policy on the device and rollout engines over it.
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/flow.hpp"
#include "device_policy.hpp"
#include "gpu.hpp"
#include "model/cuda_model.hpp"
#include "rollout/engine.hpp"

namespace gpu_test {

// Prompts around page borders, of one token, and long ones; all kinds of sampling; siblings.
std::vector<accord::rollout::Request> mixed_requests(int64_t vocab);

struct Run {
  std::vector<accord::Sample> samples;
  std::map<accord::SampleKey, std::vector<uint8_t>> routing;  // where it is recorded
  accord::rollout::EngineStats stats;
};

// With what the engine has counted so far.
Run generate(accord::rollout::Engine& engine, const std::vector<accord::rollout::Request>& requests);

class Rollout {
 public:
  Rollout(const Gpu& gpu, DevicePolicy policy);

  accord::model::CudaModel& model() { return *model_; }
  const accord::ModelConfig& config() const { return policy_.config; }
  const DevicePolicy& policy() const { return policy_; }

  std::unique_ptr<accord::rollout::Engine> engine(accord::rollout::EngineOptions options);
  // On an engine of its own.
  Run generate(const accord::rollout::EngineOptions& options,
               const std::vector<accord::rollout::Request>& requests);

  // Log-probabilities of the response, and the expert ids [positions][MoE layers, K] of all but the last
  // token, from one packed forward over all samples, with the tapes that a backward needs.
  void packed(const std::vector<accord::Sample>& samples, const std::vector<float>& temperatures,
              std::vector<std::vector<float>>& logprobs, std::vector<std::vector<uint8_t>>& routing);

 private:
  const Gpu& gpu_;
  DevicePolicy policy_;
  std::unique_ptr<accord::model::CudaModel> model_;
};

void check_same(const std::vector<accord::Sample>& got, const std::vector<accord::Sample>& want);

}  // namespace gpu_test
