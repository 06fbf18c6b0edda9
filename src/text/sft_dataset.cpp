#include "text/sft_dataset.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/files.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "text/fields.hpp"
#include "text/records.hpp"
#include "text/skipped.hpp"

namespace accord::text {
namespace {

struct Record {
  std::string prompt;  // rendered
  std::string response;
};

StatusOr<Record> read_record(std::string_view line, const SftOptions& options, const ChatTemplate& chat) {
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(line));
  if (!json.is_object()) {
    return data_error("a record must be an object, not {}", kind_of(json));
  }
  const auto prompt = json.find(options.prompt_key);
  if (prompt == json.end()) {
    return data_error("the prompt '{}' is missing; the record has {}", options.prompt_key,
                      member_names(json));
  }
  StatusOr<PromptSource> source = parse_prompt(*prompt);
  if (!source.ok()) {
    return annotate(source.status(), options.prompt_key);
  }
  Record record;
  ACCORD_ASSIGN_OR_RETURN(record.prompt, render_prompt(*source, chat));
  ACCORD_ASSIGN_OR_RETURN(record.response, string_field(json, options.response_key));
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

}  // namespace

StatusOr<SftDataset> SftDataset::parse(std::string_view content, const SftOptions& options,
                                       const Tokenizer& tokenizer, const ChatTemplate& chat) {
  SftDataset data;
  DatasetReport& report = data.report;
  SkippedLog skipped(report.problems);
  std::unordered_set<std::string> seen;
  const auto add = [&](const Line& line) -> Status {
    ++report.records;
    const std::string place = fmt::format("{}:{}", options.path, line.number);
    const auto bad = [&](const Status& error) {
      return skipped.decide(annotate(error, place), options.on_bad_line, /*key=*/"", report.bad_lines);
    };
    const StatusOr<Record> record = read_record(line.text, options, chat);
    if (!record.ok()) {
      return bad(record.status());
    }
    StatusOr<SftExample> example = encode_record(*record, line.record, tokenizer);
    if (!example.ok()) {
      return bad(example.status());
    }
    const auto length = static_cast<int64_t>(example->tokens.size());
    if (options.max_tokens > 0 && length > options.max_tokens) {
      return skipped.decide(
          data_error("{}: the record has {} tokens; the limit is {}", place, length, options.max_tokens),
          options.on_long_record, /*key=*/"", report.long_prompts);
    }
    if (!seen.insert(digest_hex(digest_hex(record->prompt) + record->response)).second) {
      ++report.duplicates;
    }
    report.max_tokens = std::max(report.max_tokens, length);
    data.examples.push_back(*std::move(example));
    return absl::OkStatus();
  };
  ACCORD_RETURN_IF_ERROR(for_each_line(content, add));
  report.kept = static_cast<int64_t>(data.examples.size());
  if (report.kept == 0) {
    return data_error("{}: has no records that can be used ({} records, {} bad lines, {} over {} tokens)",
                      options.path, report.records, report.bad_lines, report.long_prompts,
                      options.max_tokens);
  }
  log::info("{}: {}", options.path, report.summary());
  return data;
}

StatusOr<SftDataset> SftDataset::load(const SftOptions& options, const Tokenizer& tokenizer,
                                      const ChatTemplate& chat) {
  ACCORD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(options.path));
  return parse({reinterpret_cast<const char*>(file.data()), file.size()}, options, tokenizer, chat);
}

}  // namespace accord::text
