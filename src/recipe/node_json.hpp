#pragma once
// A part of a recipe whose keys this program does not know, as JSON.
#include "base/status.hpp"
#include "base/strict_json.hpp"
#include "recipe/node.hpp"

namespace accord::recipe {

// Unquoted true, false, null and decimal numbers are values of their own, all else is text. A key that comes
// twice is an error; `location` is where it stands.
StatusOr<Json> to_json(const Node& node, Location& location);

}  // namespace accord::recipe
