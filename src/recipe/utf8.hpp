#pragma once
#include <string_view>

namespace accord::recipe {

// The offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7); npos: none.
size_t find_invalid_utf8(std::string_view text);

}  // namespace accord::recipe
