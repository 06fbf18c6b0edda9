#pragma once
// Checks of what a step is given, before anything is computed.
#include <span>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "trainer/trainer.hpp"

namespace accord::trainer {

// Exit code kBadData; messages name the sample (step, prompt, index) and the rule.
Status validate_samples(std::span<const TrainSample> samples, const ModelConfig& config, bool needs_logprobs);
Status validate_samples(std::span<const SftSample> samples, const ModelConfig& config);

// Whether the sample's routing fits: (tokens - 1) * routing_width(config) ids, all in range, no expert twice
// in a layer. Names the rule, not the sample.
Status check_recorded_routing(const TrainSample& sample, const ModelConfig& config);

std::string describe(const SampleKey& key);

}  // namespace accord::trainer
