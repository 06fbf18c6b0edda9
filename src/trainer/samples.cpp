#include "trainer/samples.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace accord::trainer {

namespace {

Status validate_tokens(std::span<const int32_t> tokens, int32_t prompt_length, const ModelConfig& config) {
  if (prompt_length < 1) return data_error("prompt_length is {}, must be at least 1", prompt_length);
  if (static_cast<int64_t>(tokens.size()) <= prompt_length) {
    return data_error("{} tokens with a prompt of {}: there is no response token to train on", tokens.size(),
                      prompt_length);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size) {
      return data_error("token {} at position {} is outside the vocabulary of {}", tokens[i], i,
                        config.vocab_size);
    }
  }
  return absl::OkStatus();
}

Status validate_sample(const TrainSample& sample, const ModelConfig& config, bool needs_logprobs) {
  ACCORD_RETURN_IF_ERROR(validate_tokens(sample.tokens, sample.prompt_length, config));
  const size_t response = static_cast<size_t>(sample.response_length());
  if (needs_logprobs && sample.rollout_logprobs.size() != response) {
    return data_error("{} rollout log-probs for {} response tokens", sample.rollout_logprobs.size(),
                      response);
  }
  if (!sample.old_logprobs.empty() && sample.old_logprobs.size() != response) {
    return data_error("{} old log-probs for {} response tokens", sample.old_logprobs.size(), response);
  }
  if (!sample.ref_logprobs.empty() && sample.ref_logprobs.size() != response) {
    return data_error("{} reference log-probs for {} response tokens", sample.ref_logprobs.size(), response);
  }
  if (!(sample.temperature > 0.0F) || !std::isfinite(sample.temperature)) {
    return data_error("temperature {} is not a positive number", sample.temperature);
  }
  return sample.routing.empty() ? absl::OkStatus() : check_recorded_routing(sample, config);
}

}  // namespace

Status check_recorded_routing(const TrainSample& sample, const ModelConfig& config) {
  const int64_t width = routing_width(config);
  const size_t bytes = expert_id_bytes(config.num_experts);
  const size_t rows = sample.tokens.size() - 1;
  const size_t expected = rows * static_cast<size_t>(width);
  if (sample.routing.bytes.size() != expected * bytes) {
    return data_error(
        "its routing has {} bytes, must have {}: {} for each of {} tokens, {} MoE layers and {} experts per "
        "token",
        sample.routing.bytes.size(), expected * bytes, bytes, rows, num_moe_layers(config),
        config.num_experts_per_token);
  }
  const size_t top_k = static_cast<size_t>(config.num_experts_per_token);
  std::vector<int32_t> chosen(top_k);
  for (size_t begin = 0; begin < expected; begin += top_k) {
    load_expert_ids(sample.routing, config.num_experts, begin, chosen);
    const size_t token = begin / static_cast<size_t>(width);
    for (size_t i = 0; i < top_k; ++i) {
      if (chosen[i] >= config.num_experts) {
        return data_error("its routing names expert {} at token {}, the model has {} experts", chosen[i],
                          token, config.num_experts);
      }
      if (std::find(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(i), chosen[i]) !=
          chosen.begin() + static_cast<std::ptrdiff_t>(i)) {
        return data_error("its routing names expert {} twice in one layer at token {}", chosen[i], token);
      }
    }
  }
  return absl::OkStatus();
}

std::string describe(const SampleKey& key) {
  return fmt::format("sample {} of prompt {} (drawn at step {})", key.sample_index, key.prompt_id, key.step);
}

Status validate_samples(std::span<const TrainSample> samples, const ModelConfig& config,
                        bool needs_logprobs) {
  if (samples.empty()) return data_error("trainer: a step needs at least one sample");
  const bool reference = !samples[0].ref_logprobs.empty();
  const bool routing = !samples[0].routing.empty();
  const bool old = !samples[0].old_logprobs.empty();
  for (const TrainSample& sample : samples) {
    const Status status = validate_sample(sample, config, needs_logprobs);
    if (!status.ok()) return annotate(status, describe(sample.key));
    if (sample.ref_logprobs.empty() == reference || sample.routing.empty() == routing ||
        sample.old_logprobs.empty() == old) {
      return data_error(
          "{}: old and reference log-probs and routing are given for all samples of a step or for none",
          describe(sample.key));
    }
  }
  return absl::OkStatus();
}

Status validate_samples(std::span<const SftSample> samples, const ModelConfig& config) {
  if (samples.empty()) return data_error("trainer: a step needs at least one sample");
  for (size_t i = 0; i < samples.size(); ++i) {
    const Status status = validate_tokens(samples[i].tokens, samples[i].prompt_length, config);
    if (!status.ok()) return annotate(status, fmt::format("supervised sample {}", i));
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
