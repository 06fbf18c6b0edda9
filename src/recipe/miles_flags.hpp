#pragma once
// The arguments of a Miles launcher, by flag: spelling, number and kind of values are checked.
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "recipe/shell_words.hpp"

namespace accord::recipe {

// kAny: given or not, its values do not matter.
enum class MilesKind : uint8_t { kNumber, kText, kFlag, kList, kAny };

// A flag whose value is the value of a key. An empty key: the flag is translated by code.
struct MilesFlag {
  std::string_view flag;
  MilesKind kind;
  std::string_view key;
};

std::span<const MilesFlag> miles_flags();

class MilesArguments {
 public:
  // Errors (kBadRecipe) as source:line: flag: rule.
  static StatusOr<MilesArguments> read(const std::vector<ShellWord>& words, std::string_view source);

  // The first value of a flag; empty for a flag without values; nothing where it was not given.
  std::optional<std::string> given(std::string_view flag) const;
  std::vector<std::string> values(std::string_view flag) const;
  int32_t line_of(std::string_view flag) const;  // 1 for one that was not given
  // The given flag that decides a key of the recipe, or a mapping around it; empty: none.
  std::string_view flag_of(std::string_view key) const;
  // Not known here, in the order given: those that may change results, and the others.
  const std::vector<std::string>& changing() const { return changing_; }
  const std::vector<std::string>& unknown() const { return unknown_; }

  template <class... Args>
  Status fail(std::string_view flag, fmt::format_string<Args...> format, Args&&... args) const {
    return failure(flag, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  struct Argument {
    std::vector<ShellWord> values;
    int32_t line = 1;
  };

  explicit MilesArguments(std::string_view source) : source_(source) {}
  Status collect(const std::vector<ShellWord>& words);
  Status take(const std::string& flag, Argument argument);
  Status check_values(const MilesFlag& known, const Argument& argument) const;
  Status check_spelling(const std::string& flag, int32_t line) const;
  Status failure(std::string_view flag, const std::string& rule) const;

  std::string source_;
  std::map<std::string, Argument, std::less<>> arguments_;
  std::vector<std::string> changing_;
  std::vector<std::string> unknown_;
};

// Printable ASCII of foreign text, cut at 80 characters; ? for the rest.
std::string printable_ascii(std::string_view text);

}  // namespace accord::recipe
