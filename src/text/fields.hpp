#pragma once
// Typed access to members of a JSON object; errors name the member and what it is instead.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "base/strict_json.hpp"

namespace accord::text {

StatusOr<std::string> string_field(const Json& object, std::string_view key);
StatusOr<const Json*> array_field(const Json& object, std::string_view key);
StatusOr<int64_t> integer_field(const Json& object, std::string_view key);
StatusOr<bool> bool_field(const Json& object, std::string_view key, bool missing);  // null counts as missing

// "context: " before an error's message; success stays.
Status annotate_if_error(const Status& status, std::string_view context);

// The members of `object`, as text for a message: 'a', 'b', and so on.
std::string member_names(const Json& object);

}  // namespace accord::text
