// Any bytes as a Transformer Engine precision file: a located error, or configs that every matcher finds.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "recipe/te_config.hpp"

using namespace accord;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const StatusOr<recipe::TeConfig> file = recipe::parse_te_config(text, "te.yaml");
  if (!file.ok()) {
    if (message_of(file.status()).substr(0, 8) != "te.yaml:" ||
        exit_code(file.status()) != ExitCode::kBadRecipe) {
      std::abort();
    }
    return 0;
  }
  recipe::PrecisionPart precision;
  precision.configs = file->configs;
  for (const recipe::PrecisionMatcher& matcher : file->matchers) {
    if (matcher.pattern.empty() || !matcher.enabled || precision.find_config(matcher.config) == nullptr) {
      std::abort();
    }
  }
  return 0;
}
