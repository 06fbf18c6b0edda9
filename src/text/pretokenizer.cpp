#include "text/pretokenizer.hpp"

#include <algorithm>
#include <utility>

#include "text/fields.hpp"
#include "text/pattern.hpp"

namespace accord::text {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Range {
  size_t begin;
  size_t end;
  bool is_match;
};

// The whole text as matches and the gaps between them.
std::vector<Range> ranges_of(std::string_view text, const std::vector<Match>& matches, bool invert) {
  std::vector<Range> ranges;
  size_t previous = 0;
  for (const Match& match : matches) {
    if (previous != match.begin) {
      ranges.push_back({previous, match.begin, invert});
    }
    ranges.push_back({match.begin, match.end, !invert});
    previous = match.end;
  }
  if (previous != text.size()) {
    ranges.push_back({previous, text.size(), invert});
  }
  return ranges;
}

}  // namespace

StatusOr<PreTokenizer> PreTokenizer::parse(const Json& json) {
  PreTokenizer result;
  if (!json.is_null()) {
    ACCORD_RETURN_IF_ERROR(annotate_if_error(result.add(json), "pre_tokenizer"));
  }
  if (!result.has_byte_level_) {
    return data_error("pre_tokenizer: has no ByteLevel step; only byte-level BPE tokenizers are supported");
  }
  return result;
}

Status PreTokenizer::add(const Json& json) {
  ACCORD_ASSIGN_OR_RETURN(const std::string type, string_field(json, "type"));
  if (has_byte_level_) {
    return data_error("{} comes after ByteLevel; ByteLevel must be the last step", type);
  }
  if (type == "Sequence") {
    ACCORD_ASSIGN_OR_RETURN(const Json* steps, array_field(json, "pretokenizers"));
    for (const Json& step : *steps) {
      ACCORD_RETURN_IF_ERROR(add(step));
    }
    return absl::OkStatus();
  }
  if (type == "Split") {
    return annotate_if_error(add_split(json), "Split");
  }
  if (type == "Digits") {
    return annotate_if_error(add_digits(json), "Digits");
  }
  if (type == "ByteLevel") {
    return annotate_if_error(add_byte_level(json), "ByteLevel");
  }
  return data_error("the pre-tokenizer '{}' is not supported (Sequence, Split, Digits and ByteLevel are)",
                    type);
}

StatusOr<PreTokenizer::Behavior> PreTokenizer::parse_behavior(const Json& json) {
  ACCORD_ASSIGN_OR_RETURN(const std::string name, string_field(json, "behavior"));
  constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [known, behavior] : kNames) {
    if (name == known) {
      return behavior;
    }
  }
  return data_error("the behavior '{}' is not supported", name);
}

Status PreTokenizer::add_split(const Json& json) {
  const auto pattern = json.find("pattern");
  if (pattern == json.end() || !pattern->is_object() || pattern->size() != 1) {
    return data_error("'pattern' must be an object with one member, Regex or String");
  }
  Step step;
  ACCORD_ASSIGN_OR_RETURN(step.behavior, parse_behavior(json));
  ACCORD_ASSIGN_OR_RETURN(step.invert, bool_field(json, "invert", false));
  if (pattern->contains("Regex")) {
    ACCORD_ASSIGN_OR_RETURN(const std::string text, string_field(*pattern, "Regex"));
    ACCORD_ASSIGN_OR_RETURN(Regex regex, Regex::compile_oniguruma(text));
    step.regex.push_back(std::move(regex));
  } else {
    ACCORD_ASSIGN_OR_RETURN(const std::string text, string_field(*pattern, "String"));
    if (text.empty()) {
      return data_error("the String pattern is empty");
    }
    ACCORD_ASSIGN_OR_RETURN(Regex regex, Regex::compile(literal_pattern(text)));
    step.regex.push_back(std::move(regex));
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

Status PreTokenizer::add_digits(const Json& json) {
  Step step;
  ACCORD_ASSIGN_OR_RETURN(const bool individual, bool_field(json, "individual_digits", false));
  step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  ACCORD_ASSIGN_OR_RETURN(Regex regex, Regex::compile(number_class()));
  step.regex.push_back(std::move(regex));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

Status PreTokenizer::add_byte_level(const Json& json) {
  Step step;
  ACCORD_ASSIGN_OR_RETURN(step.add_prefix_space, bool_field(json, "add_prefix_space", true));
  ACCORD_ASSIGN_OR_RETURN(const bool use_regex, bool_field(json, "use_regex", true));
  if (use_regex) {
    ACCORD_ASSIGN_OR_RETURN(Regex regex, Regex::compile_oniguruma(kGpt2Pattern));
    step.regex.push_back(std::move(regex));
  }
  has_byte_level_ = true;
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void PreTokenizer::cut(std::string_view text, const std::vector<Match>& matches, const Step& step,
                       std::vector<std::string_view>& out) {
  std::vector<Range> ranges = ranges_of(text, matches, step.invert);
  const bool backwards = step.behavior == Behavior::kMergedWithNext;
  if (backwards) {
    std::reverse(ranges.begin(), ranges.end());
  }
  // Merging keeps the reference's rules: the first of two neighbouring matches merges, the second does not;
  // Contiguous joins neighbours of the same kind.
  std::vector<Range> kept;
  bool previous = false;
  for (const Range& range : ranges) {
    bool merge = false;
    switch (step.behavior) {
      case Behavior::kIsolated:
        break;
      case Behavior::kRemoved:
        if (range.is_match) {
          continue;
        }
        break;
      case Behavior::kMergedWithPrevious:
      case Behavior::kMergedWithNext:
        merge = range.is_match && !previous;
        break;
      case Behavior::kContiguous:
        merge = range.is_match == previous;
        break;
    }
    previous = range.is_match;
    if (merge && !kept.empty()) {
      (backwards ? kept.back().begin : kept.back().end) = backwards ? range.begin : range.end;
    } else {
      kept.push_back(range);
    }
  }
  if (backwards) {
    std::reverse(kept.begin(), kept.end());
  }
  for (const Range& range : kept) {
    if (range.begin < range.end) {
      out.push_back(text.substr(range.begin, range.end - range.begin));
    }
  }
}

Status PreTokenizer::split(std::string_view text, Regex::Scratch& scratch, Pieces& pieces) const {
  pieces.views.assign(text.empty() ? 0 : 1, text);
  std::vector<std::string_view> next;
  std::vector<Match> matches;
  for (const Step& step : steps_) {
    next.clear();
    for (std::string_view piece : pieces.views) {
      if (step.add_prefix_space && !piece.starts_with(' ')) {
        piece = pieces.rewritten.emplace_back(1, ' ').append(piece);
      }
      if (step.regex.empty()) {
        next.push_back(piece);
        continue;
      }
      ACCORD_RETURN_IF_ERROR(step.regex.front().find_all(piece, scratch, matches));
      cut(piece, matches, step, next);
    }
    pieces.views.swap(next);
  }
  return absl::OkStatus();
}

}  // namespace accord::text
