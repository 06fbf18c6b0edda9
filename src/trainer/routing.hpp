#pragma once
// The rollout's expert choices, laid out for a micro-batch, and how far the trainer's own choices agree.
#include <cstdint>
#include <span>
#include <vector>

#include "base/model_config.hpp"
#include "trainer/trainer.hpp"

namespace accord::trainer {

class RecordedRouting {
 public:
  explicit RecordedRouting(const ModelConfig& config) : config_(config), moe_slots_(moe_slots(config)) {}

  // Takes the members' routing; without any the layout is empty.
  void build(std::span<const TrainSample> samples, std::span<const int32_t> members);
  std::span<const int32_t> ids() const { return ids_; }  // [MoE layers, T, K] of the last build

  // Compares with the experts that these scores (and the router's bias, if it has one) choose.
  void compare(int64_t layer, const float* probs_TE, const float* bias_E);
  // Experts chosen by score over everything compared, and those among them that the routing knows.
  double chosen() const { return chosen_; }
  double common() const { return common_; }

 private:
  const ModelConfig& config_;
  const std::vector<int64_t> moe_slots_;
  std::vector<int32_t> ids_;
  int64_t rows_ = 0;
  double common_ = 0.0;
  double chosen_ = 0.0;
};

}  // namespace accord::trainer
