#include "controller/model_rules.hpp"

#include "base/expert_ids.hpp"

namespace accord::controller {

Status check_model_rules(const recipe::Recipe& recipe, const ModelConfig& config) {
  if (recipe.algorithm.routing_replay && num_moe_layers(config) == 0) {
    return recipe_error(
        "algorithm.routing_replay: {} has no mixture-of-experts layer, so there is no routing to replay (set "
        "false)",
        recipe.model.checkpoint);
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
