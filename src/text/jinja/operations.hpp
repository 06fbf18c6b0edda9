#pragma once
// Attributes, items, arithmetic, and the filters, tests and methods by name. What is not known is an error
// that says so.
#include <optional>
#include <string_view>

#include "base/status.hpp"
#include "text/jinja/arguments.hpp"
#include "text/jinja/value.hpp"

namespace accord::text::jinja {

bool is_method(const Value& receiver, std::string_view name);  // of Python's str, list or dict
StatusOr<Value> call_method(const Value& receiver, std::string_view name, const Arguments& arguments);

StatusOr<Value> apply_filter(std::string_view name, const Value& input, const Arguments& arguments);
StatusOr<bool> apply_test(std::string_view name, const Value& input, const Arguments& arguments);

StatusOr<Value> get_attribute(const Value& value, std::string_view name);  // undefined where there is none
StatusOr<Value> get_item(const Value& value, const Value& key);
// Bounds are null, none or integers.
StatusOr<Value> get_slice(const Value& value, const Value* start, const Value* stop, const Value* step);

StatusOr<Value> arithmetic(std::string_view operation, const Value& a, const Value& b);
StatusOr<Value> negate(const Value& value);

}  // namespace accord::text::jinja
