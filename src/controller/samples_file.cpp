#include "controller/samples_file.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/files.hpp"

namespace accord::controller {

Status write_samples(const RunDirectory& directory, uint64_t step, std::span<const ScoredSample> samples,
                     std::span<const Prompt> prompts, std::span<const std::string> prompt_texts) {
  std::string lines;
  for (const ScoredSample& sample : samples.first(std::min(samples.size(), kMaxSamplesPerStep))) {
    const SampleSummary& summary = sample.rolled.summary;
    nlohmann::ordered_json line;
    line["prompt_id"] = summary.key.prompt_id;
    line["sample_index"] = summary.key.sample_index;
    line["prompt"] = prompt_texts[sample.rolled.prompt];
    line["response"] = summary.response_text;
    line["label"] = prompts[sample.rolled.prompt].label;
    line["pred"] = sample.pred;
    line["reward"] = sample.reward;
    if (!sample.extra.empty()) {
      line["extra"] = nlohmann::ordered_json::parse(sample.extra);
    }
    if (sample.failed) {
      line["reward_failed"] = true;
    }
    line["response_length"] = summary.response_length;
    line["truncated"] = summary.truncated;
    // A response cut in the middle of a character is still written.
    lines += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return write_file_atomic(directory.file(fmt::format("samples/step_{:06}.jsonl", step)), lines);
}

}  // namespace accord::controller
