#pragma once
// A small mixture-of-experts policy, plans for it, and random masters.
#include <map>
#include <string>
#include <vector>

#include "base/model_config.hpp"
#include "precision/plan.hpp"
#include "weights/export.hpp"

namespace accord::weights::testing {

// Two layers, two experts; up and gate have more elements than one tile.
ModelConfig small_config(bool tied = false);

// All MLP weights in one config; attention stays BF16.
precision::PrecisionPlan plan_with(const ModelConfig& config, const recipe::PrecisionConfig& mlp);
recipe::PrecisionConfig config_of(WeightFormat format);

using MasterMap = std::map<std::string, std::vector<float>>;

MasterMap random_masters(const ModelConfig& config, uint64_t seed);
Masters borrow(const MasterMap& masters);

}  // namespace accord::weights::testing
