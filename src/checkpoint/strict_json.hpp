#pragma once
// Strict JSON (base/strict_json.hpp) out of files. Only the .cpp files of this room include this header.
#include <string>
#include <string_view>

#include "base/strict_json.hpp"

namespace accord::checkpoint {

// `file` is named in errors.
StatusOr<Json> parse_json(std::string_view text, std::string_view file);

// Reads at most max_bytes; the value must be an object.
StatusOr<Json> read_json_object(const std::string& path, int64_t max_bytes);

}  // namespace accord::checkpoint
