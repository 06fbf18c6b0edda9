#include "checkpoint/json_fields.hpp"

#include <cmath>
#include <limits>

namespace accord::checkpoint {

const Json* JsonFields::find(std::string_view key) const {
  const auto found = object_.find(std::string(key));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::fail(std::string_view key, std::string_view what) {
  if (status_.ok()) {
    status_ = data_error("{}: {} {}", where_, key, what);
  }
}

int64_t JsonFields::integer(std::string_view key, int64_t low, int64_t high) {
  if (!has(key)) {
    fail(key, "is missing");
    return low;
  }
  return integer(key, low, high, low);
}

int64_t JsonFields::integer(std::string_view key, int64_t low, int64_t high, int64_t fallback) {
  const Json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  const bool fits = value->is_number_unsigned()
                        ? value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                        : value->is_number_integer();
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    fail(key, fmt::format("is {}, must be an integer in {}..{}", printable(value->dump()), low, high));
    return fallback;
  }
  return value->get<int64_t>();
}

double JsonFields::number(std::string_view key) {
  if (!has(key)) {
    fail(key, "is missing");
    return 0.0;
  }
  return number(key, 0.0);
}

double JsonFields::number(std::string_view key, double fallback) {
  const Json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    fail(key, fmt::format("is {}, must be a finite number", printable(value->dump())));
    return fallback;
  }
  return value->get<double>();
}

bool JsonFields::boolean(std::string_view key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    fail(key, fmt::format("is {}, must be true or false", printable(value->dump())));
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonFields::text(std::string_view key, std::string_view fallback) {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::string(fallback);
  }
  if (!value->is_string()) {
    fail(key, fmt::format("is {}, must be a string", printable(value->dump())));
    return std::string(fallback);
  }
  return value->get<std::string>();
}

}  // namespace accord::checkpoint
