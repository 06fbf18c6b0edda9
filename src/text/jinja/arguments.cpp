#include "text/jinja/arguments.hpp"

#include <algorithm>

namespace accord::text::jinja {

using Kind = Value::Kind;

Status Arguments::accept(std::string_view function, std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size()) {
    return data_error("{}: takes at most {} arguments here, {} are given", function, names.size(),
                      positional.size());
  }
  for (const auto& argument : named) {
    const auto found = std::find(names.begin(), names.end(), argument.first);
    if (found == names.end()) {
      return data_error("{}: the argument '{}' is not supported", function, argument.first);
    }
    if (static_cast<size_t>(found - names.begin()) < positional.size()) {
      return data_error("{}: the argument '{}' is given twice", function, argument.first);
    }
  }
  return absl::OkStatus();
}

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) {
    return &positional[index];
  }
  const auto found =
      std::find_if(named.begin(), named.end(), [&](const auto& argument) { return argument.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

StatusOr<int64_t> Arguments::integer(size_t index, std::string_view name, int64_t missing) const {
  const Value* value = find(index, name);
  if (value == nullptr) {
    return missing;
  }
  if (!value->is(Kind::kInt) && !value->is(Kind::kBool)) {
    return data_error("the argument '{}' must be an int, is a {}", name, type_name(*value));
  }
  return value->as_integer();
}

StatusOr<bool> Arguments::flag(size_t index, std::string_view name, bool missing) const {
  const Value* value = find(index, name);
  return value == nullptr ? missing : truthy(*value);
}

StatusOr<std::string> Arguments::text(size_t index, std::string_view name, std::string_view missing) const {
  const Value* value = find(index, name);
  if (value == nullptr) {
    return std::string(missing);
  }
  if (!value->is(Kind::kString)) {
    return data_error("the argument '{}' must be a str, is a {}", name, type_name(*value));
  }
  return value->as_string();
}

}  // namespace accord::text::jinja
