#pragma once
// Rules of a recipe that depend on the model's architecture.
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "recipe/recipe.hpp"

namespace accord::controller {

// Error (kBadRecipe): algorithm.routing_replay for a model without MoE layers.
Status check_model_rules(const recipe::Recipe& recipe, const ModelConfig& config);

}  // namespace accord::controller
