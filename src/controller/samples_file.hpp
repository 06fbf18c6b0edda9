#pragma once
// samples/step_000012.jsonl: what the policy was asked and said, for reading.
#include <cstdint>
#include <span>
#include <string>

#include "base/status.hpp"
#include "controller/run_directory.hpp"
#include "controller/step_metrics.hpp"

namespace accord::controller {

// The first kMaxSamplesPerStep samples, one JSON object a line: prompt, response, label, pred, reward,
// prompt_id, sample_index, response_length, truncated.
inline constexpr size_t kMaxSamplesPerStep = 16;

Status write_samples(const RunDirectory& directory, uint64_t step, std::span<const ScoredSample> samples,
                     std::span<const Prompt> prompts, std::span<const std::string> prompt_texts);

}  // namespace accord::controller
