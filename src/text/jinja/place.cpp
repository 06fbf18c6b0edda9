#include "text/jinja/place.hpp"

#include <fmt/format.h>

namespace accord::text::jinja {

std::string describe(const Place& place) {
  return fmt::format("line {}, column {}", place.line, place.column);
}

}  // namespace accord::text::jinja
