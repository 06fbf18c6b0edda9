#include "text/sft_dataset.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "text/fields.hpp"
#include "text/record_source.hpp"
#include "text/records.hpp"
#include "text/skipped.hpp"

namespace accord::text {
namespace {

struct Record {
  std::string prompt;  // rendered
  std::string response;
};

StatusOr<std::string> response_of(const Json& json, const std::string& key) {
  const Json* response = find_member(json, key);
  if (response == nullptr) {
    return data_error("the member '{}' is missing", key);
  }
  if (!response->is_string()) {
    return data_error("'{}' must be a string, not {}", key, kind_of(*response));
  }
  return response->get<std::string>();
}

StatusOr<Record> read_record(const StatusOr<Json>& json, const SftOptions& options,
                             const ChatTemplate& chat) {
  ACCORD_RETURN_IF_ERROR(json.status());
  const Json* prompt = find_member(*json, options.prompt_key);
  if (prompt == nullptr) {
    return data_error("the prompt '{}' is missing; the record has {}", options.prompt_key,
                      member_names(*json));
  }
  StatusOr<PromptSource> source = parse_prompt(*prompt);
  if (!source.ok()) {
    return annotate(source.status(), options.prompt_key);
  }
  Record record;
  ACCORD_ASSIGN_OR_RETURN(record.prompt, render_prompt(*source, chat));
  ACCORD_ASSIGN_OR_RETURN(record.response, response_of(*json, options.response_key));
  if (record.response.empty()) {
    return data_error("'{}' is empty", options.response_key);
  }
  return record;
}

StatusOr<SftExample> encode_record(const Record& record, uint64_t id, const Tokenizer& tokenizer) {
  SftExample example;
  example.id = id;
  ACCORD_ASSIGN_OR_RETURN(example.tokens, tokenizer.encode(record.prompt));
  if (example.tokens.empty()) {
    return data_error("the prompt is empty");
  }
  example.prompt_length = static_cast<int32_t>(example.tokens.size());
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int32_t> response, tokenizer.encode(record.response));
  example.tokens.insert(example.tokens.end(), response.begin(), response.end());
  if (!tokenizer.eos_token_ids().empty()) {
    example.tokens.push_back(tokenizer.eos_token_ids().front());
  }
  return example;
}

class SftBuilder {
 public:
  SftBuilder(const SftOptions& options, const Tokenizer& tokenizer, const ChatTemplate& chat)
      : options_(options), tokenizer_(tokenizer), chat_(chat), skipped_(data_.report.problems) {}

  Status add(const SourceRecord& source) {
    DatasetReport& report = data_.report;
    ++report.records;
    const auto bad = [&](const Status& error) {
      return skipped_.decide(annotate(error, source.place), options_.on_bad_line, /*key=*/"",
                             report.bad_lines);
    };
    const StatusOr<Record> record = read_record(source.json, options_, chat_);
    if (!record.ok()) {
      return bad(record.status());
    }
    StatusOr<SftExample> example = encode_record(*record, source.index, tokenizer_);
    if (!example.ok()) {
      return bad(example.status());
    }
    const auto length = static_cast<int64_t>(example->tokens.size());
    if (options_.max_tokens > 0 && length > options_.max_tokens) {
      return skipped_.decide(data_error("{}: the record has {} tokens; the limit is {}", source.place, length,
                                        options_.max_tokens),
                             options_.on_long_record, /*key=*/"", report.long_prompts);
    }
    if (!seen_.insert(digest_hex(digest_hex(record->prompt) + record->response)).second) {
      ++report.duplicates;
    }
    report.max_tokens = std::max(report.max_tokens, length);
    data_.examples.push_back(*std::move(example));
    return absl::OkStatus();
  }

  StatusOr<SftDataset> finish() {
    DatasetReport& report = data_.report;
    report.kept = static_cast<int64_t>(data_.examples.size());
    if (report.kept == 0) {
      return data_error("{}: has no records that can be used ({} records, {} bad lines, {} over {} tokens)",
                        options_.path, report.records, report.bad_lines, report.long_prompts,
                        options_.max_tokens);
    }
    log::info("{}: {}", options_.path, report.summary());
    return std::move(data_);
  }

 private:
  const SftOptions& options_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  SftDataset data_;
  SkippedLog skipped_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

StatusOr<SftDataset> SftDataset::parse(std::string_view content, const SftOptions& options,
                                       const Tokenizer& tokenizer, const ChatTemplate& chat) {
  SftBuilder builder(options, tokenizer, chat);
  ACCORD_RETURN_IF_ERROR(for_each_jsonl_record(
      content, options.path, [&](const SourceRecord& record) { return builder.add(record); }));
  return builder.finish();
}

StatusOr<SftDataset> SftDataset::load(const SftOptions& options, const Tokenizer& tokenizer,
                                      const ChatTemplate& chat) {
  SftBuilder builder(options, tokenizer, chat);
  ACCORD_RETURN_IF_ERROR(for_each_record(options.path, {options.prompt_key, options.response_key},
                                         /*all=*/false,
                                         [&](const SourceRecord& record) { return builder.add(record); }));
  return builder.finish();
}

}  // namespace accord::text
