#pragma once
// Where something stands in a template.
#include <string>

namespace accord::text::jinja {

struct Place {
  int line = 1;    // from 1
  int column = 1;  // from 1, in characters
};

std::string describe(const Place& place);  // "line 7, column 12"

}  // namespace accord::text::jinja
