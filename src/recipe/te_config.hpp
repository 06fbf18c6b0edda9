#pragma once
// Transformer Engine precision files, as Megatron's --te-precision-config-file reads them:
//   configs:   name -> {transformer_engine_config_type: TEQuantizationParams, training_recipe,
//   evaluation_recipe} matchers:  name -> {type: glob, pattern, config, enabled}, in order; the first enabled
//   match decides
// A recipe without a format means BF16. What would be silently different here is an error: formats that
// accord does not have, an evaluation recipe that differs, unknown fields.
#include <string>
#include <string_view>
#include <vector>

#include "recipe/reader.hpp"
#include "recipe/recipe.hpp"

namespace accord::recipe {

struct TeConfig {
  std::vector<PrecisionConfig> configs;
  std::vector<PrecisionMatcher> matchers;  // the enabled ones; all match Megatron module paths
  std::vector<std::string> disabled;       // names of the others
};

// Errors as source:line:column: key: rule, with exit code kBadRecipe.
StatusOr<TeConfig> parse_te_config(std::string_view text, std::string_view source);

// Puts the file that precision.te_config_file names in front of the recipe's own matchers, which then decide
// what it leaves open, and clears the key. Returns the number of matchers that came from the file.
size_t resolve_te_config(PrecisionPart& precision, Findings& findings, std::vector<std::string>& notes);

}  // namespace accord::recipe
