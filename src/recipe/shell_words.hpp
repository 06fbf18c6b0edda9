#pragma once
// The words of a shell script, enough of it for lists of arguments: quotes, backslashes, comments, arrays.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace accord::recipe {

// What stands between a word and the one before it; lines inside NAME=( ... ) count as spaces.
enum class Gap : uint8_t { kSpace, kLine, kCommand };

struct ShellWord {
  std::string text;
  int32_t line = 1;
  bool expands = false;      // holds an unquoted or double-quoted $ or `, which only a shell resolves
  bool conditional = false;  // stands inside an if, a case or a loop
  bool quoted = false;       // in part
  Gap gap = Gap::kSpace;
};

// The brackets of NAME=( ... ) are dropped with their NAME=. $NAME and ${NAME} of a variable that a
// NAME=value before it sets, unconditionally and to one value only, are replaced by it, and split at spaces
// as shells do where they are not quoted; values that a shell would match with files' names are not. An open
// quote is an error (kBadRecipe).
StatusOr<std::vector<ShellWord>> split_shell_words(std::string_view text, std::string_view source);

}  // namespace accord::recipe
