#pragma once
// Prompt and response pairs from a JSONL or Parquet file, for supervised training: {"prompt": text or
// messages, "response": text}.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "text/chat_template.hpp"
#include "text/dataset.hpp"
#include "text/tokenizer.hpp"

namespace accord::text {

struct SftOptions {
  std::string path;  // may name a part: file@[a:b]
  std::string prompt_key = "prompt";
  std::string response_key = "response";
  int64_t max_tokens = 0;  // of prompt and response together; 0: no limit
  OnBad on_bad_line = OnBad::kFail;
  OnBad on_long_record = OnBad::kFail;
};

// The prompt is tokenized on its own, as a rollout sees it; then come the response's tokens and, where the
// tokenizer has one, its first end-of-text token.
struct SftExample {
  uint64_t id = 0;  // the record's index in its file
  std::vector<int32_t> tokens;
  int32_t prompt_length = 0;
};

struct SftDataset {
  std::vector<SftExample> examples;
  DatasetReport report;

  // Errors as Dataset's; an empty response is a bad line.
  static StatusOr<SftDataset> load(const SftOptions& options, const Tokenizer& tokenizer,
                                   const ChatTemplate& chat);
  static StatusOr<SftDataset> parse(std::string_view content, const SftOptions& options,
                                    const Tokenizer& tokenizer, const ChatTemplate& chat);
};

}  // namespace accord::text
