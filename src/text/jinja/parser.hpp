#pragma once
// Tokens -> a parsed template. What chat templates do not use (include, import, extends, block, call,
// recursive loops, line statements) is refused with its line.
#include <string_view>

#include "base/status.hpp"
#include "text/jinja/ast.hpp"

namespace accord::text::jinja {

StatusOr<Block> parse(std::string_view source);

}  // namespace accord::text::jinja
