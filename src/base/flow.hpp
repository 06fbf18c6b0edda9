#pragma once
// Plain data that passes between rooms: what a step consumes and produces, and where weights lie.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/expert_ids.hpp"
#include "base/weight_format.hpp"

namespace accord {

// ---- prompts and samples -----------------------------------------------------------------------

struct Prompt {
  uint64_t id = 0;  // stable across epochs, restarts and worker counts: the record's index in its file
  std::vector<int32_t> tokens;
  std::string label;
};

struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy
  float top_p = 1.0F;
  int32_t top_k = -1;  // -1: all
  int32_t max_new_tokens = 0;
  std::vector<int32_t> stop_tokens;  // end the sample; the stop token itself is kept in `tokens`
  std::vector<std::string> stop_strings;
};

enum class FinishReason : uint8_t { kStop, kLength };

// One drawn continuation. Its identity (step, prompt id, sample index) keys the random numbers.
struct SampleKey {
  uint64_t step = 0;
  uint64_t prompt_id = 0;
  uint32_t sample_index = 0;
  auto operator<=>(const SampleKey&) const = default;  // NOLINT: its 0 is no pointer
};

struct Sample {
  SampleKey key;
  uint64_t weight_version = 0;
  std::vector<int32_t> tokens;  // prompt and response
  int32_t prompt_length = 0;
  FinishReason finish = FinishReason::kLength;
  // Per response token. `logprobs`: log-softmax(logits / temperature) over the whole vocabulary; it
  // enters the loss and the mismatch metrics. `sampling_logprobs`: of the distribution drawn from,
  // after top-k and top-p (equal to `logprobs` when neither is set).
  std::vector<float> logprobs;
  std::vector<float> sampling_logprobs;
  ExpertIds routing;  // with routing replay; empty otherwise

  int32_t response_length() const { return static_cast<int32_t>(tokens.size()) - prompt_length; }
};

// ---- weights -----------------------------------------------------------------------------------

// One tensor's place in the arena. Offsets are from the arena's start.
struct WeightEntry {
  std::string name;
  WeightFormat format = WeightFormat::kBF16;
  std::vector<int64_t> shape;  // logical: [out, in] for a linear
  int64_t data_offset = 0;     // elements: bf16 [N,K]; e4m3 [N,K]; packed e2m1 [N,K/2]
  int64_t data_bytes = 0;
  int64_t scale_offset = 0;  // block scales: e8m0 [N,K/32]; e4m3 [N,K/16]
  int64_t scale_bytes = 0;   // 0 for BF16
  int64_t outer_offset = 0;  // one fp32 outer scale A (NVFP4)
  int64_t outer_bytes = 0;
  Nvfp4Scaling scaling{};      // of the weight; NVFP4
  Nvfp4Scaling activations{};  // of what it is multiplied with; NVFP4
};

// The ordered table of all weights of a policy. Every process computes it from (config, plan); the
// digest is the identity of the policy's bytes.
struct WeightManifest {
  std::vector<WeightEntry> entries;
  int64_t arena_bytes = 0;
  std::string digest;  // 32 hex digits
};

// ---- metrics -----------------------------------------------------------------------------------

using Metrics = std::map<std::string, double>;

}  // namespace accord
