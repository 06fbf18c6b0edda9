#pragma once
// Order of names as people number things.
#include <string_view>

namespace accord {

// Whether `a` comes before `b`; runs of digits are compared as numbers: rollout/2 is before rollout/10. Names
// that differ only in leading zeros are ordered as text.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace accord
