#pragma once
// Characters of Unicode 15 to 16 by general category or script. The regular expressions of the tokenizers
// know them; PCRE2 up to 10.42 has the tables of Unicode 14.
#include <string>
#include <string_view>

namespace accord::text {

// Members of a PCRE2 character class, `\x{..}-\x{..}...`, for a category (L, Lu, N, ...) or script (Han,
// ...).
std::string newer_members(std::string_view property);

}  // namespace accord::text
