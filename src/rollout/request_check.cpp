#include "rollout/request_check.hpp"

#include <algorithm>
#include <limits>

namespace accord::rollout {
namespace {

// Below this a division by the temperature may overflow for ordinary logits.
constexpr float kMinTemperature = 1e-4F;

Status check_sampling(const SamplingParams& params, const RequestLimits& limits) {
  const float t = params.temperature;
  if (!(t == 0.0F || (t >= kMinTemperature && t <= 1.0F / kMinTemperature))) {
    return usage_error("temperature is {}: use 0 (greedy) or a value from {} to {}", t, kMinTemperature,
                       1.0F / kMinTemperature);
  }
  if (!(params.top_p > 0.0F && params.top_p <= 1.0F)) {
    return usage_error("top_p is {}: use a value above 0 and at most 1", params.top_p);
  }
  if (params.top_k != -1 && params.top_k < 1) {
    return usage_error("top_k is {}: use -1 (all tokens) or at least 1", params.top_k);
  }
  if (params.max_new_tokens < 1) {
    return usage_error("max_new_tokens is {}: use at least 1", params.max_new_tokens);
  }
  for (const std::string& stop : params.stop_strings) {
    if (stop.empty()) {
      return usage_error("a stop string is empty: it would end every sample at once");
    }
    if (!limits.can_detokenize) {
      return usage_error(
          "stop strings need a tokenizer, and there is none: use stop tokens, or a checkpoint "
          "with a tokenizer");
    }
  }
  return absl::OkStatus();
}

}  // namespace

Status check_request(const Request& request, const RequestLimits& limits) {
  const auto name = [&] { return fmt::format("prompt {}", request.prompt.id); };
  if (request.prompt.tokens.empty()) {
    return data_error("{} is empty: a sample needs at least one prompt token", name());
  }
  for (size_t i = 0; i < request.prompt.tokens.size(); ++i) {
    const int32_t token = request.prompt.tokens[i];
    if (token < 0 || token >= limits.vocab_size) {
      return data_error(
          "{}: token {} at position {} is outside the vocabulary of {}; was it encoded with "
          "another model's tokenizer?",
          name(), token, i, limits.vocab_size);
    }
  }
  if (request.num_samples < 1) {
    return usage_error("{}: num_samples is {}: use at least 1", name(), request.num_samples);
  }
  if (const Status status = check_sampling(request.sampling, limits); !status.ok()) {
    return annotate(status, name());
  }
  const int64_t prompt_length = static_cast<int64_t>(request.prompt.tokens.size());
  const int64_t total = prompt_length + request.sampling.max_new_tokens;
  const int64_t max_length =
      limits.max_positions > 0 ? limits.max_positions : int64_t{std::numeric_limits<int32_t>::max()};
  if (total > max_length) {
    return data_error(
        "{}: {} prompt tokens and up to {} new ones exceed the model's {} positions; shorten the "
        "prompt or max_new_tokens",
        name(), prompt_length, request.sampling.max_new_tokens, max_length);
  }
  // The last token is drawn but never an input.
  if (total - 1 > limits.cache_rows) {
    return data_error(
        "{}: {} prompt tokens and up to {} new ones need {} rows of the KV cache, which has {}; "
        "give it more tokens",
        name(), prompt_length, request.sampling.max_new_tokens, total - 1, limits.cache_rows);
  }
  return absl::OkStatus();
}

}  // namespace accord::rollout
