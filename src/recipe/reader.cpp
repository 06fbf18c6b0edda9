#include "recipe/reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "recipe/node_json.hpp"

namespace accord::recipe {
namespace {

constexpr size_t kMaxShownValue = 60;
constexpr size_t kMaxReported = 50;

// A value as it goes into a message: short, on one line.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxShownValue)) {
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  // Do not cut a UTF-8 character in half.
  if (text.size() > kMaxShownValue) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) {
      out.pop_back();
    }
    if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0x80) {
      out.pop_back();
    }
    out += "...";
  }
  return out;
}

std::string shown(const Node& node) {
  if (node.kind != Node::Kind::kScalar) {
    return std::string(node.kind_name());
  }
  return node.quoted ? fmt::format("the text \"{}\"", shown(node.text))
                     : fmt::format("'{}'", shown(node.text));
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string describe_range(RealRange range) {
  const std::string low = fmt::format("{} {}", range.min_excluded ? "above" : "at least", range.min);
  return std::isinf(range.max) ? low : fmt::format("{} and at most {}", low, range.max);
}

bool in_range(double value, RealRange range) {
  return value <= range.max && (range.min_excluded ? value > range.min : value >= range.min);
}

// 010 is eight to some readers of YAML and ten to others.
bool has_leading_zero(std::string_view text) {
  if (text.starts_with('-')) {
    text.remove_prefix(1);
  }
  return text.size() > 1 && text[0] == '0';
}

}  // namespace

void Findings::add(Location location, std::string path, std::string rule) {
  problems_.push_back({location, std::move(path), std::move(rule)});
}

void Findings::remember(std::string path, Location location) {
  locations_.insert_or_assign(std::move(path), location);
}

Location Findings::location_of(std::string_view path) const {
  while (!path.empty()) {
    if (const auto found = locations_.find(path); found != locations_.end()) {
      return found->second;
    }
    const size_t dot = path.rfind('.');
    path = path.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
  return {};
}

std::string describe(const Problem& problem, const std::vector<std::string>& sources) {
  const std::string& source = sources[static_cast<size_t>(problem.location.source)];
  const std::string where =
      problem.location.source == 0
          ? fmt::format("{}:{}:{}", source, problem.location.line, problem.location.column)
          : fmt::format("--set {}", shown(source));
  return problem.path.empty() ? fmt::format("{}: {}", where, problem.rule)
                              : fmt::format("{}: {}: {}", where, problem.path, problem.rule);
}

Status to_status(std::vector<Problem> problems, const std::vector<std::string>& sources) {
  std::stable_sort(problems.begin(), problems.end(),
                   [](const Problem& a, const Problem& b) { return a.location < b.location; });
  std::vector<std::string> lines;
  for (const Problem& problem : problems) {
    std::string line = describe(problem, sources);
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) {
      lines.push_back(std::move(line));
    }
    if (lines.size() == kMaxReported) {
      lines.emplace_back("more errors follow; fix these first");
      break;
    }
  }
  return recipe_error("{}", fmt::join(lines, "\n"));
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongestWord = 64;  // the distance takes quadratic time
  if (word.size() > kLongestWord) {
    return std::nullopt;
  }
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  std::optional<std::string> result;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best && distance < candidate.size()) {
      best = distance;
      result = candidate;
    }
  }
  return result;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') {
    text.remove_prefix(1);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || has_leading_zero(text)) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  double value = 0.0;
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') {
    text.remove_prefix(1);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

MapReader::MapReader(Node* node, std::string path, Findings& findings)
    : path_(std::move(path)), findings_(findings) {
  if (node == nullptr || node->kind == Node::Kind::kNull) {
    return;
  }
  if (node->kind != Node::Kind::kMapping) {
    findings_.add(node->location, path_, fmt::format("must be a mapping of keys, is {}", shown(*node)));
    return;
  }
  node_ = node;
  for (const Node::Entry& entry : node->entries) {
    findings_.remember(path_of(entry.key), entry.value.location);
  }
}

std::string MapReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

bool MapReader::has(std::string_view key) const { return node_ != nullptr && node_->find(key) != nullptr; }

Node* MapReader::raw(std::string_view key) {
  if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) {
    asked_.emplace_back(key);
  }
  return node_ == nullptr ? nullptr : node_->find(key);
}

void MapReader::fail(std::string_view key, std::string rule) {
  std::string path = path_of(key);
  const Location location = findings_.location_of(path);
  findings_.add(location, std::move(path), std::move(rule));
}

void MapReader::finish() {
  if (node_ == nullptr) {
    return;
  }
  std::map<std::string_view, Location> seen;
  for (const Node::Entry& entry : node_->entries) {
    const std::string path = path_of(shown(entry.key));
    if (const auto [first, fresh] = seen.emplace(entry.key, entry.location); !fresh) {
      findings_.add(
          entry.location, path,
          first->second.source == 0
              ? fmt::format("duplicate key, first written on line {} (keep one)", first->second.line)
              : "duplicate key (keep one)");
      continue;
    }
    if (std::find(asked_.begin(), asked_.end(), entry.key) != asked_.end()) {
      continue;
    }
    if (const auto guess = nearest(entry.key, asked_)) {
      findings_.add(entry.location, path, fmt::format("unknown key (did you mean '{}'?)", *guess));
    } else {
      findings_.add(entry.location, path,
                    fmt::format("unknown key (known here: {})", fmt::join(asked_, ", ")));
    }
  }
}

Node* MapReader::scalar(std::string_view key, std::string_view expected) {
  Node* node = raw(key);
  if (node == nullptr) {
    return nullptr;
  }
  if (node->kind != Node::Kind::kScalar) {
    fail(key, fmt::format("must be {}, is {}", expected, shown(*node)));
    return nullptr;
  }
  return node;
}

void MapReader::text(std::string_view key, std::string& out) {
  if (const Node* node = scalar(key, "text")) {
    if (node->text.empty()) {
      fail(key, "must not be empty");
      return;
    }
    out = node->text;
  }
}

void MapReader::optional_text(std::string_view key, std::optional<std::string>& out) {
  Node* node = raw(key);
  if (node == nullptr) {
    return;
  }
  if (node->kind == Node::Kind::kNull) {
    out.reset();
    return;
  }
  std::string value;
  text(key, value);
  if (!value.empty()) {
    out = std::move(value);
  }
}

void MapReader::boolean(std::string_view key, bool& out) {
  if (const Node* node = scalar(key, "true or false")) {
    if (node->quoted || (node->text != "true" && node->text != "false")) {
      fail(key, fmt::format("must be true or false, is {}", shown(*node)));
      return;
    }
    out = node->text == "true";
  }
}

void MapReader::integer(std::string_view key, int64_t& out, int64_t min, int64_t max) {
  if (const Node* node = scalar(key, "a whole number")) {
    const auto value = node->quoted ? std::nullopt : parse_integer(node->text);
    if (!value) {
      fail(key, fmt::format("must be a whole number{}, is {}",
                            has_leading_zero(node->text) ? " without leading zeros" : "", shown(*node)));
    } else if (*value < min || *value > max) {
      fail(key, fmt::format("must be from {} to {}, is {}", min, max, *value));
    } else {
      out = *value;
    }
  }
}

void MapReader::natural(std::string_view key, uint64_t& out) {
  if (const Node* node = scalar(key, "a whole number")) {
    uint64_t value = 0;
    const char* end = node->text.data() + node->text.size();
    const auto [stop, error] = std::from_chars(node->text.data(), end, value);
    if (node->quoted || error != std::errc() || stop != end || has_leading_zero(node->text)) {
      fail(key, fmt::format("must be a whole number from 0 to 2^64-1, is {}", shown(*node)));
      return;
    }
    out = value;
  }
}

void MapReader::real(std::string_view key, double& out, RealRange range) {
  if (const Node* node = scalar(key, "a number")) {
    const auto value = node->quoted ? std::nullopt : parse_real(node->text);
    if (!value) {
      fail(key, fmt::format("must be a finite number, is {}", shown(*node)));
    } else if (!in_range(*value, range)) {
      fail(key, fmt::format("must be {}, is {}", describe_range(range), *value));
    } else {
      out = *value;
    }
  }
}

void MapReader::real_list(std::string_view key, std::vector<double>& out, size_t size, RealRange range) {
  const Node* node = raw(key);
  if (node == nullptr) {
    return;
  }
  if (node->kind != Node::Kind::kSequence || node->items.size() != size) {
    fail(key, fmt::format("must be a list of {} numbers", size));
    return;
  }
  std::vector<double> values;
  for (const Node& item : node->items) {
    const auto value =
        item.kind == Node::Kind::kScalar && !item.quoted ? parse_real(item.text) : std::nullopt;
    if (!value || !in_range(*value, range)) {
      findings_.add(
          item.location, path_of(key),
          fmt::format("each item must be a number {}, one is {}", describe_range(range), shown(item)));
      return;
    }
    values.push_back(*value);
  }
  out = std::move(values);
}

void MapReader::text_list(std::string_view key, std::vector<std::string>& out) {
  const Node* node = raw(key);
  if (node == nullptr) {
    return;
  }
  if (node->kind != Node::Kind::kSequence) {
    fail(key, fmt::format("must be a list of texts, is {}", shown(*node)));
    return;
  }
  std::vector<std::string> values;
  for (const Node& item : node->items) {
    if (item.kind != Node::Kind::kScalar || item.text.empty()) {
      findings_.add(item.location, path_of(key),
                    fmt::format("each item must be text and not empty, one is {}", shown(item)));
      return;
    }
    values.push_back(item.text);
  }
  out = std::move(values);
}

void MapReader::json_object(std::string_view key, std::string& out) {
  const Node* node = raw(key);
  if (node == nullptr || node->kind == Node::Kind::kNull) {
    return;
  }
  if (node->kind != Node::Kind::kMapping) {
    fail(key, fmt::format("must be a mapping, is {}", shown(*node)));
    return;
  }
  Location location = node->location;
  const StatusOr<Json> json = to_json(*node, location);
  if (!json.ok()) {
    findings_.add(location, path_of(key), std::string(message_of(json.status())));
    return;
  }
  out = json->dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::optional<size_t> MapReader::choose(std::string_view key, const std::vector<std::string_view>& words) {
  const std::string expected = fmt::format("one of: {}", fmt::join(words, ", "));
  const Node* node = scalar(key, expected);
  if (node == nullptr) {
    return std::nullopt;
  }
  const auto found = std::find(words.begin(), words.end(), node->text);
  if (found == words.end()) {
    fail(key, fmt::format("must be {}; is {}", expected, shown(*node)));
    return std::nullopt;
  }
  return static_cast<size_t>(found - words.begin());
}

void MapReader::require(std::string_view key, std::string_view remedy) {
  if (!has(key)) {
    fail(key, fmt::format("required key is missing ({})", remedy));
  }
}

}  // namespace accord::recipe
