#pragma once
// A policy of random weights: which format each has, and its bytes. Values repeat; their sizes are those of a
// fresh initialization, so that activations stay finite and routers choose experts evenly.
#include <cstddef>
#include <string>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "bench/gpu.hpp"
#include "device/thread_pool.hpp"
#include "precision/plan.hpp"

namespace accord::bench {

struct RandomPolicy {
  ModelConfig config;
  precision::PrecisionPlan plan;
  WeightManifest manifest;
};

// Every linear layer that the plan's structure allows in one format.
StatusOr<RandomPolicy> uniform_policy(const ModelConfig& config, WeightFormat format);
// `format`: bf16; mxfp8 or nvfp4 (routed experts where the model has them, else every linear layer); or a
// recipe's path, whose precision is used. Errors: usage, those of the recipe.
StatusOr<RandomPolicy> planned_policy(const ModelConfig& config, const std::string& format);

// Writes the whole arena. On a device in the order of its stream, with memory for the largest tensor on top.
void fill_arena(const RandomPolicy& policy, std::byte* arena, ThreadPool& pool);
void fill_arena(const RandomPolicy& policy, std::byte* arena, const Gpu& gpu);

}  // namespace accord::bench
