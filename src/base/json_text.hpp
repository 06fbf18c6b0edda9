#pragma once
// JSON scalars as text, for line-by-line files.
#include <string>
#include <string_view>

namespace accord {

// The shortest text that reads back to the same bits. JSON has no non-finite numbers, so these become the
// strings "NaN", "Infinity" and "-Infinity", quotes included; they never become 0 or null.
std::string json_number(double value);

// `text` (UTF-8) in quotes, with quotes, backslashes and control characters escaped.
std::string json_string(std::string_view text);

}  // namespace accord
