#pragma once
// From the command line of a Miles (or slime) launcher to a recipe. The text is a file of arguments as shells
// write them: `--flag value`, quotes, comments, continued lines, NAME=( ... ) arrays and NAME=value
// variables, of which those in environment.hpp count. docs/migrating.md lists the flags that are known.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace accord::recipe {

struct MilesImport {
  std::string yaml;                // loads once what `notes` calls missing is filled in
  std::vector<std::string> notes;  // flags without an equivalent, choices made, keys to fill in
};

// A known flag with a bad value, a flag that looks like a known one, and flags that contradict each other are
// errors as source:line: flag: rule (kBadRecipe). A precision file that the flags name is read and written
// out.
StatusOr<MilesImport> import_miles_args(std::string_view text, std::string_view source);

}  // namespace accord::recipe
