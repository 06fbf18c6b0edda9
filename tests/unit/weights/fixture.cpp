#include "fixture.hpp"

#include <cmath>

#include "base/philox.hpp"
#include "support/catch.hpp"

namespace accord::weights::testing {

ModelConfig small_config(bool tied) {
  ModelConfig config;
  config.architecture = Architecture::kQwen3Moe;
  config.vocab_size = 300;
  config.hidden_size = 256;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  config.intermediate_size = 288;
  config.num_experts = 2;
  config.num_experts_per_token = 1;
  config.moe_intermediate_size = 288;
  config.layer_is_moe = {true, true};
  config.qk_norm = true;
  config.tie_word_embeddings = tied;
  config.max_position_embeddings = 64;
  return config;
}

recipe::PrecisionConfig config_of(WeightFormat format) {
  recipe::PrecisionConfig config;
  config.name = "mlp";
  config.format = format;
  return config;
}

precision::PrecisionPlan plan_with(const ModelConfig& config, const recipe::PrecisionConfig& mlp) {
  recipe::PrecisionPart part;
  part.configs = {mlp};
  part.matchers = {{"mlp", "*.mlp.experts.*", mlp.name, true}};
  auto plan = precision::build_plan(config, part);
  INFO(message_of(plan.status()));
  REQUIRE(plan.ok());
  return *std::move(plan);
}

MasterMap random_masters(const ModelConfig& config, uint64_t seed) {
  MasterMap masters;
  uint64_t stream = 0;
  for (const ParamSpec& spec : parameter_specs(config)) {
    PhiloxStream random(seed, stream++);
    std::vector<float>& values = masters[spec.name];
    values.resize(static_cast<size_t>(spec.numel()));
    for (float& value : values) {
      // Rows of very different size, so that scales differ.
      value =
          static_cast<float>(random.next_normal() * std::exp2(-static_cast<double>(random.next_below(12))));
    }
  }
  return masters;
}

Masters borrow(const MasterMap& masters) {
  return [&masters](const std::string& name) -> StatusOr<Master> {
    return Master(std::span<const float>(masters.at(name)));
  };
}

}  // namespace accord::weights::testing
