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
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    for (int32_t m : members) {
      const TrainSample& sample = samples[static_cast<size_t>(m)];
      for (int64_t t = 0; t + 1 < static_cast<int64_t>(sample.tokens.size()); ++t) {
        const auto begin = sample.routing.begin() + (t * config_.num_layers + layer) * top_k;
        ids_.insert(ids_.end(), begin, begin + top_k);
      }
    }
  }
}

void RecordedRouting::compare(int64_t layer, const float* probs_TE) {
  const int64_t top_k = config_.num_experts_per_token;
  std::vector<int32_t> live(static_cast<size_t>(top_k));
  for (int64_t t = 0; t < rows_; ++t) {
    kernels::router_top_k(probs_TE + t * config_.num_experts, config_.num_experts, top_k, live.data());
    const auto recorded = ids_.begin() + (layer * rows_ + t) * top_k;
    for (int32_t id : live) {
      common_ += std::find(recorded, recorded + top_k, id) != recorded + top_k ? 1.0 : 0.0;
      chosen_ += 1.0;
    }
  }
}

}  // namespace accord::trainer
