#include "recipe/recipe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/files.hpp"
#include "recipe/environment.hpp"
#include "recipe/schema.hpp"
#include "recipe/te_config.hpp"

namespace accord::recipe {

int64_t LayerShare::resolve(int64_t num_layers) const {
  // The small subtraction keeps exact shares exact: 10 % of 50 is 5, whatever 0.1 rounds to.
  const double layers =
      is_percent ? std::ceil(value * static_cast<double>(num_layers) / 100.0 - 1e-9) : value;
  return std::clamp(static_cast<int64_t>(layers), int64_t{0}, num_layers);
}

const PrecisionConfig* PrecisionPart::find_config(std::string_view name) const {
  for (const PrecisionConfig& config : configs) {
    if (config.name == name) {
      return &config;
    }
  }
  return nullptr;
}

StatusOr<Inspection> inspect_recipe(std::string_view text, std::string_view source,
                                    std::span<const std::string> overrides, const Environment& environment) {
  std::vector<std::string> sources{std::string(source)};
  sources.insert(sources.end(), overrides.begin(), overrides.end());
  Location location;
  StatusOr<Node> root = parse_yaml(text, 0, location);
  if (!root.ok()) {
    return to_status({{location, "", std::string(message_of(root.status()))}}, sources);
  }
  if (root->kind == Node::Kind::kSequence || root->kind == Node::Kind::kScalar) {
    return to_status(
        {{root->location, "", fmt::format("a recipe is a mapping of keys, this is {}", root->kind_name())}},
        sources);
  }
  Findings findings;
  for (size_t i = 0; i < overrides.size(); ++i) {
    const auto index = static_cast<int32_t>(i + 1);
    if (const Status status = apply_override(*root, overrides[i], index); !status.ok()) {
      findings.add({index, 1, 1}, "", std::string(message_of(status)));
    }
  }
  Inspection inspection{read_tree(*root, findings), {}, {}};
  PrecisionPart& precision = inspection.recipe.precision;
  const size_t from_file = resolve_te_config(precision, findings, inspection.notes);
  resolve_environment(environment, precision, findings, inspection.notes);
  check_rules(inspection.recipe, from_file, findings);
  const std::vector<Problem> refused = find_not_built(inspection.recipe, findings);
  if (!findings.problems().empty()) {
    std::vector<Problem> all = findings.problems();
    all.insert(all.end(), refused.begin(), refused.end());
    return to_status(std::move(all), sources);
  }
  if (!refused.empty()) {
    inspection.refused = to_status(refused, sources);
  }
  return inspection;
}

StatusOr<Recipe> parse_recipe(std::string_view text, std::string_view source,
                              std::span<const std::string> overrides) {
  ACCORD_ASSIGN_OR_RETURN(Inspection inspection, inspect_recipe(text, source, overrides));
  ACCORD_RETURN_IF_ERROR(inspection.refused);
  return std::move(inspection.recipe);
}

StatusOr<Inspection> inspect_recipe_file(const std::string& path, std::span<const std::string> overrides,
                                         const Environment& environment) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxRecipeBytes));
  return inspect_recipe(text, path, overrides, environment);
}

StatusOr<Recipe> load_recipe(const std::string& path, std::span<const std::string> overrides) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxRecipeBytes));
  return parse_recipe(text, path, overrides);
}

}  // namespace accord::recipe
