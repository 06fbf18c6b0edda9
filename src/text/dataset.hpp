#pragma once
// Prompts with labels from a JSONL or Parquet file, tokenized once. Two layouts are read, record by record:
//   {"prompt": text or [{"role", "content"}...], "label": "34"}                          Miles
//   {"prompt": [...], "reward_model": {"ground_truth": "34", ...}, ...}                 DAPO, upstream
// Keys that are not named here are ignored.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace accord::text {

enum class OnBad : uint8_t { kFail, kSkip };  // kSkip: count, log the first few, go on

struct DatasetOptions {
  std::string path;  // may name a part: file@[a:b]
  std::string prompt_key = "prompt";
  std::string label_key = "label";
  int64_t max_prompt_tokens = 0;  // 0: no limit
  bool keep_records = false;      // what record() gives
  uint64_t first_id = 0;          // the id of the file's first record
  OnBad on_bad_line = OnBad::kFail;
  OnBad on_long_prompt = OnBad::kFail;  // a prompt of more than max_prompt_tokens
  // What the user sets to skip instead, for error messages; empty: nothing can be set.
  std::string on_bad_line_key = "on_bad_line";
  std::string on_long_prompt_key = "on_long_prompt";
};

struct DatasetReport {
  int64_t records = 0;                // lines that are not blank, or rows
  int64_t kept = 0;                   // what the dataset holds
  int64_t duplicates = 0;             // kept records whose prompt and label an earlier one has; they stay
  int64_t bad_lines = 0;              // skipped
  int64_t long_prompts = 0;           // skipped
  int64_t max_tokens = 0;             // of the longest kept prompt
  std::vector<std::string> problems;  // the first few skipped records: file:line: reason

  std::string summary() const;  // one line
};

// A record as it stands in the file, for scorers that look at more than the label.
struct PromptRecord {
  std::string messages;  // JSON: [{"role", "content"}...]; a plain text is one user message
  std::string metadata;  // JSON: the object without prompt and label
};

class Dataset {
 public:
  // A data error names file:line and the reason. Also errors: no records, and none left after skipping.
  static StatusOr<Dataset> load(const DatasetOptions& options, const Tokenizer& tokenizer,
                                const ChatTemplate& chat);
  // The same from memory; options.path stands for the file in errors.
  static StatusOr<Dataset> parse(std::string_view content, const DatasetOptions& options,
                                 const Tokenizer& tokenizer, const ChatTemplate& chat);

  int64_t size() const { return static_cast<int64_t>(prompts_.size()); }
  // id: first_id and the record's index in the file, which may be more than `index`
  const Prompt& at(int64_t index) const { return prompts_[static_cast<size_t>(index)]; }
  int64_t line(int64_t index) const { return lines_[static_cast<size_t>(index)]; }  // or row, from 1
  const std::string& text(int64_t index) const;     // the prompt as it was tokenized
  const PromptRecord& record(int64_t index) const;  // only with keep_records
  const DatasetReport& report() const { return report_; }

 private:
  friend class DatasetBuilder;
  std::vector<Prompt> prompts_;
  std::vector<int64_t> lines_;
  std::vector<PromptRecord> records_;  // empty without keep_records
  std::vector<std::string> texts_;     // distinct ones
  std::vector<uint32_t> text_of_;      // prompt -> its text
  DatasetReport report_;
};

}  // namespace accord::text
