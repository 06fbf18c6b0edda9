#pragma once
// Several optimizer updates on the samples of one step.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "trainer/trainer.hpp"

namespace accord::trainer {

struct SampleRange {
  size_t begin = 0;
  size_t count = 0;
};

// Consecutive batches of whole groups, together all samples; sizes differ by at most one group, the larger
// ones first. Fewer than `updates` where there are fewer groups. num_samples is a multiple of group_size.
std::vector<SampleRange> split_updates(int64_t num_samples, int64_t group_size, int64_t updates);

// What the updates of a step say together. Means over tokens (train/clip_fraction, clip_fraction_dual,
// entropy, ppo_kl, ref_kl, importance_*) run over all tokens of the step; train/loss and train/grad_norm are
// the means of the updates; train/learning_rate is the last one's; train/microbatches the sum. mismatch/* is
// the first update's: only there does the trainer hold the weights that sampled.
Metrics combine_updates(std::span<const StepReport> reports);

}  // namespace accord::trainer
