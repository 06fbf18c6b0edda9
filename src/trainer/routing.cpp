#include "trainer/routing.hpp"

#include <algorithm>

#include "kernels/router/router.hpp"

namespace accord::trainer {

void RecordedRouting::build(std::span<const TrainSample> samples, std::span<const int32_t> members) {
  ids_.clear();
  rows_ = 0;
  if (samples.empty() || samples[0].routing.empty()) return;
  const int64_t top_k = config_.num_experts_per_token;
  for (int32_t m : members) rows_ += static_cast<int64_t>(samples[static_cast<size_t>(m)].tokens.size()) - 1;
  const int64_t layers = num_moe_layers(config_);
  ids_.resize(static_cast<size_t>(layers * rows_ * top_k));
  int64_t row = 0;
  for (int32_t m : members) {
    const TrainSample& sample = samples[static_cast<size_t>(m)];
    for (int64_t t = 0; t + 1 < static_cast<int64_t>(sample.tokens.size()); ++t, ++row) {
      for (int64_t slot = 0; slot < layers; ++slot) {
        load_expert_ids(sample.routing, config_.num_experts, static_cast<size_t>((t * layers + slot) * top_k),
                        std::span(ids_).subspan(static_cast<size_t>((slot * rows_ + row) * top_k),
                                                static_cast<size_t>(top_k)));
      }
    }
  }
}

void RecordedRouting::compare(int64_t layer, const float* probs_TE, const float* bias_E) {
  const int64_t top_k = config_.num_experts_per_token;
  const int64_t slot = moe_slots_[static_cast<size_t>(layer)];
  std::vector<int32_t> live(static_cast<size_t>(top_k));
  const kernels::RouterRule rule = kernels::router_rule(config_);
  std::vector<float> choice(static_cast<size_t>(rule.experts + rule.groups));
  for (int64_t t = 0; t < rows_; ++t) {
    kernels::router_choose(rule, probs_TE + t * config_.num_experts, bias_E, live.data(), choice.data());
    const auto recorded = ids_.begin() + (slot * rows_ + t) * top_k;
    for (int32_t id : live) {
      common_ += std::find(recorded, recorded + top_k, id) != recorded + top_k ? 1.0 : 0.0;
      chosen_ += 1.0;
    }
  }
}

}  // namespace accord::trainer
