#pragma once
// JSON that came from elsewhere: duplicate keys, trailing bytes, NaN, invalid UTF-8, integers that do not fit
// 64 bits and deep nesting are errors.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord {

// Keeps the order of keys. Members are appended without a search, so large objects parse in linear time;
// looking a key up is linear, so walk large objects instead.
using Json = nlohmann::ordered_json;

// The error says what is wrong and where in the text; callers put the file's name before it.
StatusOr<Json> parse_json(std::string_view text);

// A value's kind in words, for messages: "a string", "an object".
std::string_view kind_of(const Json& value);

// A name from a file, fit for a message: control characters escaped, at most 120 characters.
std::string printable(std::string_view name);

}  // namespace accord
