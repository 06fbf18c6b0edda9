// Any bytes as a recipe: an error or a recipe, and a recipe survives being written and read.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.hpp"

using namespace accord;

// After a first line of '#', the next line is an override and the rest the recipe.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides;
  if (text.starts_with("#\n")) {
    const size_t end = std::min(text.find('\n', 2), text.size());
    overrides.emplace_back(text.substr(2, end - 2));
    text.remove_prefix(end);
  }
  const StatusOr<recipe::Inspection> inspection = recipe::inspect_recipe(text, "fuzz.yaml", overrides);
  if (!inspection.ok()) {
    if (message_of(inspection.status()).empty() || exit_code(inspection.status()) != ExitCode::kBadRecipe) {
      std::abort();
    }
    return 0;
  }
  const std::string yaml = recipe::to_yaml(inspection->recipe);
  const StatusOr<recipe::Inspection> again = recipe::inspect_recipe(yaml, "again.yaml");
  if (!again.ok() || !(again->recipe == inspection->recipe)) {
    std::abort();
  }
  return 0;
}
