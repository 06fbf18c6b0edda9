#include "recipe/miles_variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "recipe/environment.hpp"
#include "recipe/miles_flags.hpp"
#include "recipe/node.hpp"

namespace accord::recipe {
namespace {

using std::string_view;

constexpr string_view kFamilies[] = {"NVTE_", "FLASHINFER_", "TRTLLM_", "SGLANG_FLASHINFER"};
constexpr const char* kNeedsShell = "needs a shell to be resolved (write the value out)";

bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Calls see(name, what stands before, what follows) for each identifier of a text.
template <class See>
void for_each_name(string_view text, const See& see) {
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_name_character(text[end])) {
      ++end;
    }
    if (end > at) {
      see(text.substr(at, end - at), text.substr(0, at), text.substr(end));
    }
    at = end + 1;
  }
}

bool holds_runtime(string_view text) {
  return text.find('{') != string_view::npos && text.find("env_vars") != string_view::npos;
}

bool needs_shell(string_view text) { return text.find_first_of("$`") != string_view::npos; }

}  // namespace

StatusOr<MilesVariables> MilesVariables::read(const std::vector<ShellWord>& words, string_view source) {
  MilesVariables variables(source);
  for (size_t i = 0; i < words.size(); ++i) {
    ACCORD_RETURN_IF_ERROR(variables.take(words[i], i > 0 ? string_view(words[i - 1].text) : ""));
  }
  // Names may be mentioned before they are set.
  for (const ShellWord& word : words) {
    const size_t equals = word.text.find('=');
    const bool read = equals != std::string::npos && concerns_precision(word.text.substr(0, equals));
    if (!read && !holds_runtime(word.text)) {
      ACCORD_RETURN_IF_ERROR(variables.check_mentions(word.text, word.line));
    }
  }
  return variables;
}

int32_t MilesVariables::line_in(string_view message) const {
  int32_t line = 0;
  for_each_name(message, [&](string_view name, string_view, string_view) {
    const auto found = lines_.find(name);
    line = line == 0 && found != lines_.end() ? found->second : line;
  });
  return line;
}

Status MilesVariables::failure(int32_t line, string_view name, string_view rule) const {
  return recipe_error("{}:{}: {}: {}", source_, line, printable_ascii(name), rule);
}

Status MilesVariables::take(const ShellWord& word, string_view before) {
  const size_t equals = word.text.find('=');
  const std::string name = word.text.substr(0, equals);
  if (concerns_precision(name)) {
    if (equals == std::string::npos) {
      return before == "unset"
                 ? failure(word.line, name, "unset here (leave out this line and the one that sets it)")
                 : absl::OkStatus();
    }
    if (word.expands) {
      return failure(word.line, name, fmt::format("'{}' {}", printable_ascii(word.text), kNeedsShell));
    }
    if (word.conditional) {
      return failure(word.line, name, "is set inside an if, a case or a loop, which only a shell resolves");
    }
    return set(name, word.text.substr(equals + 1), word.line);
  }
  if (holds_runtime(word.text) && (equals == std::string::npos || word.text.find('{') < equals)) {
    return take_runtime(word.text, word.line);
  }
  return holds_runtime(word.text) ? take_runtime(string_view(word.text).substr(equals + 1), word.line)
                                  : absl::OkStatus();
}

Status MilesVariables::take_runtime(string_view text, int32_t line) {
  Location location;
  StatusOr<Node> root = parse_yaml(text, 0, location);  // JSON is YAML
  const bool object = root.ok() && root->kind == Node::Kind::kMapping;
  const Node* variables = object ? root->find("env_vars") : nullptr;
  if (variables == nullptr || variables->kind != Node::Kind::kMapping) {
    Status status;
    for_each_name(text, [&](string_view name, string_view, string_view) {
      if (status.ok() && std::any_of(std::begin(kFamilies), std::end(kFamilies),
                                     [&](string_view family) { return name.starts_with(family); })) {
        status = failure(line, name,
                         "stands in a text with env_vars that is no JSON object before a shell has resolved "
                         "it (write it out)");
      }
    });
    return status;
  }
  for (const Node::Entry& entry : variables->entries) {
    const int32_t at = line + entry.location.line - 1;
    if (!concerns_precision(entry.key)) {
      continue;
    }
    if (entry.value.kind != Node::Kind::kScalar || !entry.value.quoted) {
      return failure(at, entry.key, "in env_vars must be a string (quote the value)");
    }
    if (needs_shell(entry.value.text)) {
      return failure(at, entry.key, fmt::format("'{}' {}", printable_ascii(entry.value.text), kNeedsShell));
    }
    ACCORD_RETURN_IF_ERROR(set(entry.key, entry.value.text, at));
  }
  Status status;
  for_each_name(text, [&](string_view name, string_view, string_view) {
    if (status.ok() && concerns_precision(name) && !lines_.contains(name)) {
      status = failure(line, name, "is not a key of env_vars (put it there)");
    }
  });
  return status;
}

Status MilesVariables::set(const std::string& name, const std::string& value, int32_t line) {
  const auto [place, fresh] = environment_.emplace(name, value);
  if (!fresh && place->second != value) {
    return failure(line, name,
                   fmt::format("'{}' here, '{}' on line {} (keep one)", printable_ascii(value),
                               printable_ascii(place->second), lines_.find(name)->second));
  }
  lines_.emplace(name, line);
  return absl::OkStatus();
}

// A name in a word that sets nothing readable: a mention of one that was read is harmless, a value is not.
Status MilesVariables::check_mentions(string_view text, int32_t line) const {
  Status status;
  for_each_name(text, [&](string_view name, string_view before, string_view after) {
    if (!status.ok() || !concerns_precision(name)) {
      return;
    }
    const size_t next = after.find_first_not_of("\"'\\ ");
    const bool reads = before.ends_with('$') || before.ends_with("${");
    const bool sets = !reads && next != string_view::npos && (after[next] == '=' || after[next] == ':');
    if (sets || !lines_.contains(name)) {
      status = failure(line, name,
                       fmt::format("'{}' is not understood, and the variable may change the formats (write "
                                   "NAME=value, or env_vars as JSON)",
                                   printable_ascii(text)));
    }
  });
  return status;
}

}  // namespace accord::recipe
