#pragma once
// The steps of loading: keys and types (schema.cpp), rules between keys (rules.cpp), what this version does
// not build yet (not_built.cpp). Each adds to the findings and goes on.
#include "recipe/reader.hpp"
#include "recipe/recipe.hpp"

namespace accord::recipe {

// Reads every key of the tree into a recipe; the result is meaningful only without findings.
Recipe read_tree(Node& root, Findings& findings);

// Values that are fine alone but not together. The first `matchers_from_file` matchers came from
// precision.te_config_file.
void check_rules(const Recipe& recipe, size_t matchers_from_file, Findings& findings);

std::string quoted_yaml(std::string_view text);  // a scalar that reads back as the text
std::string precision_to_yaml(const PrecisionPart& precision);

// Features that the recipe asks for and this version lacks.
std::vector<Problem> find_not_built(const Recipe& recipe, const Findings& findings);

}  // namespace accord::recipe
