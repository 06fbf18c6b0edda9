#pragma once
// What both kinds of worker do with a SetupJob: recompute plan and manifest from the recipe, and refuse to
// go on if they are not the controller's.
#include <cstdint>

#include "base/status.hpp"
#include "checkpoint/hf_config.hpp"
#include "controller/worker.hpp"
#include "precision/plan.hpp"
#include "recipe/recipe.hpp"

namespace accord::controller {

struct PolicySetup {
  recipe::Recipe recipe;
  checkpoint::HfConfig hf;
  precision::PrecisionPlan plan;
  WeightManifest manifest;
};

// `expert_shards`: into how many the worker's own pool cuts experts (precision/expert_shards.hpp).
StatusOr<PolicySetup> make_policy_setup(const SetupJob& job, int64_t expert_shards);

}  // namespace accord::controller
