#pragma once
// What both kinds of worker do with a SetupJob: recompute plan and manifest from the recipe, and refuse to
// go on if they are not the controller's.
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "checkpoint/hf_config.hpp"
#include "controller/worker.hpp"
#include "device/device.hpp"
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

// Whether a worker on `device` may be a member of `pool` ("rollout", "trainer"), whose recipe key says
// `choice`. Errors (kBadRecipe) name the key, the worker's --device and the remedy.
Status check_device(const char* pool, recipe::DeviceChoice choice, const recipe::Recipe& recipe,
                    const Device& device);

// `products`: what computes products besides the device, as ServedModel and Trainer say it; empty: nothing.
StatusOr<SetupReport> report_of(const Device& device, const std::string& products, int64_t arena_bytes,
                                int32_t threads);

}  // namespace accord::controller
