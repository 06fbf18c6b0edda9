#include "precision/expert_shards.hpp"

#include <algorithm>

#include "base/hash.hpp"

namespace accord::precision {

std::string digest_with_expert_shards(const std::string& plan_digest, int64_t shards) {
  if (shards == 1) {
    return plan_digest;
  }
  Hasher hasher;
  hasher.update(fmt::format("{}\nexpert shards {}", plan_digest, shards));
  return hasher.hex();
}

Status check_expert_shards(const PrecisionPlan& plan, int64_t trainer_shards, int64_t rollout_shards) {
  if (trainer_shards == rollout_shards) {
    return absl::OkStatus();
  }
  const auto expert = std::find_if(plan.rows.begin(), plan.rows.end(), [](const PlanRow& row) {
    return row.format == WeightFormat::kNVFP4 && row.name.find(".mlp.experts.") != std::string::npos;
  });
  if (expert == plan.rows.end()) {
    return absl::OkStatus();
  }
  return recipe_error(
      "trainer.expert_tensor_parallel: the trainer pool would take the NVFP4 outer scale of '{}' in {} "
      "shards, "
      "the rollout pool in {}: other bytes (use the same number)",
      expert->name, trainer_shards, rollout_shards);
}

}  // namespace accord::precision
