#pragma once
// The precision variables that a launcher sets: NAME=value words, and the env_vars object of a Ray runtime
// environment (RUNTIME_ENV_JSON='{...}', --runtime-env-json '{...}'), which holds them as strings.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "recipe/recipe.hpp"
#include "recipe/shell_words.hpp"

namespace accord::recipe {

class MilesVariables {
 public:
  // Whatever names such a variable and cannot be read without a shell is an error (kBadRecipe) with its line,
  // and so are two values for one.
  static StatusOr<MilesVariables> read(const std::vector<ShellWord>& words, std::string_view source);

  const Environment& environment() const { return environment_; }
  // Of the variable that `message` names; 0: of none.
  int32_t line_in(std::string_view message) const;

 private:
  explicit MilesVariables(std::string_view source) : source_(source) {}
  Status take(const ShellWord& word, std::string_view before);
  Status take_runtime(std::string_view text, int32_t line);
  Status set(const std::string& name, const std::string& value, int32_t line);
  Status check_mentions(std::string_view text, int32_t line) const;
  Status failure(int32_t line, std::string_view name, std::string_view rule) const;

  std::string source_;
  Environment environment_;
  std::map<std::string, int32_t, std::less<>> lines_;
};

}  // namespace accord::recipe
