#pragma once
// The steps of loading: keys and types (schema.cpp), rules between keys (rules.cpp), what this version does
// not build yet (not_built.cpp). Each adds to the findings and goes on.
#include "recipe/reader.hpp"
#include "recipe/recipe.hpp"

namespace accord::recipe {

// Reads every key of the tree into a recipe; the result is meaningful only without findings.
Recipe read_tree(Node& root, Findings& findings);

// Values that are fine alone but not together.
void check_rules(const Recipe& recipe, Findings& findings);

// Features that the recipe asks for and this version lacks.
std::vector<Problem> find_not_built(const Recipe& recipe, const Findings& findings);

}  // namespace accord::recipe
