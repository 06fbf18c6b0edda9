#pragma once
// JSON for files that come from elsewhere: duplicate keys, trailing bytes, NaN, invalid UTF-8 and deep
// nesting are errors. Only the .cpp files of this room include this header.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord::checkpoint {

using Json = nlohmann::ordered_json;  // keeps the order of keys, so that a rewritten config stays readable

// `file` is named in errors.
StatusOr<Json> parse_json(std::string_view text, std::string_view file);

// Reads at most max_bytes; the value must be an object.
StatusOr<Json> read_json_object(const std::string& path, int64_t max_bytes);

// A name from a file, fit for a message: control characters escaped, at most 120 characters.
std::string printable(std::string_view name);

}  // namespace accord::checkpoint
