#include "text/fields.hpp"

namespace accord::text {
namespace {

StatusOr<const Json*> member(const Json& object, std::string_view key) {
  if (!object.is_object()) {
    return data_error("must be an object with a member '{}', not {}", key, kind_of(object));
  }
  const auto found = object.find(std::string(key));
  if (found == object.end()) {
    return data_error("the member '{}' is missing", key);
  }
  return &*found;
}

}  // namespace

StatusOr<std::string> string_field(const Json& object, std::string_view key) {
  ACCORD_ASSIGN_OR_RETURN(const Json* value, member(object, key));
  if (!value->is_string()) {
    return data_error("'{}' must be a string, not {}", key, kind_of(*value));
  }
  return value->get<std::string>();
}

StatusOr<const Json*> array_field(const Json& object, std::string_view key) {
  ACCORD_ASSIGN_OR_RETURN(const Json* value, member(object, key));
  if (!value->is_array()) {
    return data_error("'{}' must be a list, not {}", key, kind_of(*value));
  }
  return value;
}

StatusOr<int64_t> integer_field(const Json& object, std::string_view key) {
  ACCORD_ASSIGN_OR_RETURN(const Json* value, member(object, key));
  if (!value->is_number_integer()) {
    return data_error("'{}' must be an integer, not {}", key, kind_of(*value));
  }
  return value->get<int64_t>();
}

StatusOr<bool> bool_field(const Json& object, std::string_view key, bool missing) {
  const auto found = object.find(std::string(key));
  if (found == object.end() || found->is_null()) {
    return missing;
  }
  if (!found->is_boolean()) {
    return data_error("'{}' must be true or false, not {}", key, kind_of(*found));
  }
  return found->get<bool>();
}

std::string member_names(const Json& object) {
  constexpr size_t kMost = 8;
  std::string names;
  size_t count = 0;
  for (auto it = object.begin(); it != object.end() && count < kMost; ++it, ++count) {
    names += (count > 0 ? ", '" : "'") + it.key() + "'";
  }
  return object.empty() ? "no members" : object.size() > kMost ? names + ", ..." : names;
}

Status annotate_if_error(const Status& status, std::string_view context) {
  return status.ok() ? status : annotate(status, context);
}

}  // namespace accord::text
