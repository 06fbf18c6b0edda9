#include "text/dataset.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "text/fields.hpp"
#include "text/record_source.hpp"
#include "text/records.hpp"
#include "text/skipped.hpp"

namespace accord::text {

std::string DatasetReport::summary() const {
  return fmt::format(
      "{} records, {} kept ({} of them duplicates), {} bad lines and {} long prompts skipped, longest prompt "
      "{} tokens",
      records, kept, duplicates, bad_lines, long_prompts, max_tokens);
}

const std::string& Dataset::text(int64_t index) const { return texts_[text_of_[static_cast<size_t>(index)]]; }

const PromptRecord& Dataset::record(int64_t index) const { return records_[static_cast<size_t>(index)]; }

class DatasetBuilder {
 public:
  DatasetBuilder(const DatasetOptions& options, const Tokenizer& tokenizer, const ChatTemplate& chat)
      : options_(options), tokenizer_(tokenizer), chat_(chat), skipped_(data_.report_.problems) {}

  Status add(const SourceRecord& source) {
    ++data_.report_.records;
    const std::string& place = source.place;
    StatusOr<Record> record = read(source.json);
    if (!record.ok()) {
      return skipped_.decide(annotate(record.status(), place), options_.on_bad_line, options_.on_bad_line_key,
                             data_.report_.bad_lines);
    }
    // Large files repeat few prompts many times: each distinct text is tokenized once.
    const auto [known, is_new] =
        first_with_text_.try_emplace(digest_hex(record->text), data_.prompts_.size());
    std::vector<int32_t> tokens;
    if (is_new) {
      StatusOr<std::vector<int32_t>> encoded = encode(record->text);
      if (!encoded.ok()) {
        first_with_text_.erase(known);
        return skipped_.decide(annotate(encoded.status(), place), options_.on_bad_line,
                               options_.on_bad_line_key, data_.report_.bad_lines);
      }
      tokens = *std::move(encoded);
      const Status fits = check_length(tokens);
      if (!fits.ok()) {
        first_with_text_.erase(known);
        return skipped_.decide(annotate(fits, place), options_.on_long_prompt, options_.on_long_prompt_key,
                               data_.report_.long_prompts);
      }
      data_.text_of_.push_back(static_cast<uint32_t>(data_.texts_.size()));
      data_.texts_.push_back(std::move(record->text));
    } else {
      tokens = data_.prompts_[known->second].tokens;
      data_.text_of_.push_back(data_.text_of_[known->second]);
    }
    if (!seen_.insert(digest_hex(fmt::format("{}\n{}", known->first, record->label))).second) {
      ++data_.report_.duplicates;
    }
    data_.report_.max_tokens = std::max(data_.report_.max_tokens, static_cast<int64_t>(tokens.size()));
    data_.lines_.push_back(source.number);
    if (options_.keep_records) {
      data_.records_.push_back(std::move(record->source));
    }
    data_.prompts_.push_back(
        Prompt{options_.first_id + source.index, std::move(tokens), std::move(record->label)});
    return absl::OkStatus();
  }

  StatusOr<Dataset> finish() {
    DatasetReport& report = data_.report_;
    report.kept = data_.size();
    if (report.kept == 0) {
      return data_error(
          "{}: none of the {} records can be used ({} bad lines, {} prompts over {} tokens); the first: {}",
          options_.path, report.records, report.bad_lines, report.long_prompts, options_.max_prompt_tokens,
          report.problems.empty() ? "" : report.problems.front());
    }
    if (report.bad_lines + report.long_prompts > 0) {
      log::warn("{}: {}", options_.path, report.summary());
    } else {
      log::info("{}: {}", options_.path, report.summary());
    }
    return std::move(data_);
  }

 private:
  struct Record {
    std::string text;
    std::string label;
    PromptRecord source;
  };

  StatusOr<Record> read(const StatusOr<Json>& json) const {
    ACCORD_RETURN_IF_ERROR(json.status());
    const Json* prompt = find_member(*json, options_.prompt_key);
    if (prompt == nullptr) {
      return data_error("the prompt '{}' is missing; the record has {}", options_.prompt_key,
                        member_names(*json));
    }
    StatusOr<PromptSource> source = parse_prompt(*prompt);
    if (!source.ok()) {
      return annotate(source.status(), options_.prompt_key);
    }
    Record record;
    ACCORD_ASSIGN_OR_RETURN(record.text, render_prompt(*source, chat_));
    ACCORD_ASSIGN_OR_RETURN(record.label, parse_label(*json, options_.label_key));
    if (options_.keep_records) {
      record.source = {messages_json(*source),
                       other_members(*json, {options_.prompt_key, options_.label_key})};
    }
    return record;
  }

  StatusOr<std::vector<int32_t>> encode(const std::string& text) const {
    ACCORD_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer_.encode(text));
    if (tokens.empty()) {
      return data_error("the prompt is empty");
    }
    return tokens;
  }

  Status check_length(const std::vector<int32_t>& tokens) const {
    if (options_.max_prompt_tokens > 0 && static_cast<int64_t>(tokens.size()) > options_.max_prompt_tokens) {
      return data_error("the prompt has {} tokens; the limit is {}", tokens.size(),
                        options_.max_prompt_tokens);
    }
    return absl::OkStatus();
  }

  const DatasetOptions& options_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  Dataset data_;
  SkippedLog skipped_;
  std::unordered_map<std::string, size_t>
      first_with_text_;                   // digest of a text -> the first prompt that has it
  std::unordered_set<std::string> seen_;  // digests of (text, label)
};

StatusOr<Dataset> Dataset::parse(std::string_view content, const DatasetOptions& options,
                                 const Tokenizer& tokenizer, const ChatTemplate& chat) {
  DatasetBuilder builder(options, tokenizer, chat);
  ACCORD_RETURN_IF_ERROR(for_each_jsonl_record(
      content, options.path, [&](const SourceRecord& record) { return builder.add(record); }));
  return builder.finish();
}

StatusOr<Dataset> Dataset::load(const DatasetOptions& options, const Tokenizer& tokenizer,
                                const ChatTemplate& chat) {
  DatasetBuilder builder(options, tokenizer, chat);
  ACCORD_RETURN_IF_ERROR(
      for_each_record(options.path, {options.prompt_key, options.label_key, kUpstreamLabel},
                      options.keep_records, [&](const SourceRecord& record) { return builder.add(record); }));
  return builder.finish();
}

}  // namespace accord::text
