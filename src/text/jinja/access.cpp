// Attributes, items, slices and arithmetic.
#include <algorithm>
#include <cmath>

#include "text/jinja/objects.hpp"
#include "text/jinja/operations.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;

Value undefined_or(const Value* found, std::string_view name) {
  return found == nullptr ? Value::undefined(std::string(name)) : *found;
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto index = static_cast<int64_t>(loop.index);
  const auto size = static_cast<int64_t>(loop.items.size());
  if (name == "index") {
    return Value::integer(index + 1);
  }
  if (name == "index0") {
    return Value::integer(index);
  }
  if (name == "revindex") {
    return Value::integer(size - index);
  }
  if (name == "revindex0") {
    return Value::integer(size - index - 1);
  }
  if (name == "first") {
    return Value::boolean(index == 0);
  }
  if (name == "last") {
    return Value::boolean(index + 1 == size);
  }
  if (name == "length") {
    return Value::integer(size);
  }
  if (name == "depth") {
    return Value::integer(loop.depth);
  }
  if (name == "depth0") {
    return Value::integer(loop.depth - 1);
  }
  if (name == "previtem" && index > 0) {
    return loop.items[loop.index - 1];
  }
  if (name == "nextitem" && index + 1 < size) {
    return loop.items[loop.index + 1];
  }
  return Value::undefined(std::string(name));
}

Status operand_error(std::string_view operation, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is(Kind::kUndefined)) {
      return undefined_error(*value);
    }
  }
  return data_error("'{}' cannot be applied to a {} and a {}", operation, type_name(a), type_name(b));
}

StatusOr<Value> repeat(const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::clamp<int64_t>(times, 0, int64_t{1} << 30));
  if (value.is(Kind::kString)) {
    const std::string& text = value.as_string();
    if (text.size() * count > kMaxText) {
      return data_error("a text of more than {} bytes", kMaxText);
    }
    std::string repeated;
    for (size_t i = 0; i < (text.empty() ? 0 : count); ++i) {
      repeated += text;
    }
    return Value::string(std::move(repeated));
  }
  const std::vector<Value>& items = value.as_list().items;
  if (items.size() * count > kMaxItems) {
    return data_error("a list of more than {} items", kMaxItems);
  }
  std::vector<Value> repeated;
  for (size_t i = 0; i < (items.empty() ? 0 : count); ++i) {
    repeated.insert(repeated.end(), items.begin(), items.end());
  }
  return Value::list(std::move(repeated), value.as_list().shape);
}

bool is_sequence(const Value& value) {
  return value.is(Kind::kString) || (value.is(Kind::kList) && (value.as_list().shape == Shape::kList ||
                                                               value.as_list().shape == Shape::kTuple));
}

StatusOr<Value> real_arithmetic(std::string_view operation, double a, double b) {
  if ((operation == "/" || operation == "//" || operation == "%") && b == 0.0) {
    return data_error("a division by zero");
  }
  if (operation == "+") {
    return Value::real(a + b);
  }
  if (operation == "-") {
    return Value::real(a - b);
  }
  if (operation == "*") {
    return Value::real(a * b);
  }
  if (operation == "/") {
    return Value::real(a / b);
  }
  const double remainder = std::fmod(a, b);
  const double modulo = remainder != 0.0 && (remainder < 0.0) != (b < 0.0) ? remainder + b : remainder;
  if (operation == "%") {
    return Value::real(modulo);
  }
  if (operation == "//") {
    return Value::real(std::round((a - modulo) / b));
  }
  return data_error("'**' of floats is not supported");
}

StatusOr<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    return data_error("'**' with a negative exponent is not supported");
  }
  int64_t result = 1;
  for (int64_t i = 0; i < exponent && base != 1; ++i) {
    if (base == 0 || (base == -1 && i > 1)) {
      return Value::integer(base == 0 ? 0 : exponent % 2 == 0 ? 1 : -1);
    }
    if (__builtin_mul_overflow(result, base, &result)) {
      return data_error("a number exceeds 64 bits");
    }
  }
  return Value::integer(result);
}

StatusOr<Value> integer_arithmetic(std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (operation == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (operation == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (operation == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (operation == "**") {
    return integer_power(a, b);
  } else if (b == 0) {
    return data_error("a division by zero");
  } else if (operation == "/") {
    return Value::real(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {
    overflow = operation == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
  } else {
    const int64_t remainder = a % b;
    const bool down = remainder != 0 && (remainder < 0) != (b < 0);
    result = operation == "//" ? a / b - (down ? 1 : 0) : remainder + (down ? b : 0);
  }
  if (overflow) {
    return data_error("a number exceeds 64 bits");
  }
  return Value::integer(result);
}

}  // namespace

StatusOr<Value> get_attribute(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return undefined_error(value);
    case Kind::kDict:
      return undefined_or(value.as_dict().find(name), name);
    case Kind::kObject: {
      const Object* object = value.as_object();
      if (object->kind == Object::Kind::kNamespace) {
        for (const auto& [member, held] : static_cast<const Namespace*>(object)->members) {
          if (member == name) {
            return held;
          }
        }
      } else if (object->kind == Object::Kind::kLoop) {
        if (name == "cycle" || name == "changed") {
          return data_error("loop.{} is not supported", name);
        }
        return loop_attribute(*static_cast<const Loop*>(object), name);
      }
      break;
    }
    default:
      break;
  }
  return Value::undefined(std::string(name));
}

StatusOr<Value> get_item(const Value& value, const Value& key) {
  if (value.is(Kind::kUndefined)) {
    return undefined_error(value);
  }
  if (key.is(Kind::kUndefined)) {
    return Value::undefined(key.undefined_name());
  }
  if (key.is(Kind::kString)) {
    return get_attribute(value, key.as_string());
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string shown, to_repr(key));
  if ((!key.is(Kind::kInt) && !key.is(Kind::kBool)) || !is_sequence(value)) {
    return Value::undefined(shown);
  }
  ACCORD_ASSIGN_OR_RETURN(const int64_t size, length(value));
  const int64_t index = key.as_integer() < 0 ? key.as_integer() + size : key.as_integer();
  if (index < 0 || index >= size) {
    return Value::undefined(shown);
  }
  if (value.is(Kind::kList)) {
    return value.as_list().items[static_cast<size_t>(index)];
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> characters, iterate(value));
  return characters[static_cast<size_t>(index)];
}

StatusOr<Value> get_slice(const Value& value, const Value* start, const Value* stop, const Value* step) {
  if (value.is(Kind::kUndefined)) {
    return undefined_error(value);
  }
  if (!is_sequence(value)) {
    return data_error("a {} cannot be sliced", type_name(value));
  }
  for (const Value* bound : {start, stop, step}) {
    if (bound != nullptr && !bound->is(Kind::kNone) && !bound->is(Kind::kInt) && !bound->is(Kind::kBool)) {
      return bound->is(Kind::kUndefined)
                 ? undefined_error(*bound)
                 : data_error("a slice's bounds must be ints, not a {}", type_name(*bound));
    }
  }
  const auto given = [](const Value* bound) { return bound != nullptr && !bound->is(Kind::kNone); };
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(value));
  const auto size = static_cast<int64_t>(items.size());
  const int64_t stride = given(step) ? step->as_integer() : 1;
  if (stride == 0) {
    return data_error("a slice's step must not be 0");
  }
  const int64_t lowest = stride > 0 ? 0 : -1;
  const int64_t highest = stride > 0 ? size : size - 1;
  const auto bound_at = [&](const Value* bound, int64_t missing) {
    if (!given(bound)) {
      return missing;
    }
    const int64_t at = bound->as_integer();
    return at < 0 ? std::max(at < -size ? lowest : at + size, lowest) : std::min(at, highest);
  };
  const int64_t first = bound_at(start, stride > 0 ? lowest : highest);
  const int64_t end = bound_at(stop, stride > 0 ? highest : lowest);
  std::vector<Value> taken;
  for (int64_t i = first; stride > 0 ? i < end : i > end;) {
    taken.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, stride, &i)) {
      break;
    }
  }
  if (value.is(Kind::kList)) {
    return Value::list(std::move(taken), value.as_list().shape);
  }
  std::string text;
  for (const Value& character : taken) {
    text += character.as_string();
  }
  return Value::string(std::move(text));
}

StatusOr<Value> arithmetic(std::string_view operation, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const bool exact = !a.is(Kind::kFloat) && !b.is(Kind::kFloat);
    return exact ? integer_arithmetic(operation, a.as_integer(), b.as_integer())
                 : real_arithmetic(operation, a.as_number(), b.as_number());
  }
  if (operation == "+" && a.is(Kind::kString) && b.is(Kind::kString)) {
    return Value::string(a.as_string() + b.as_string());
  }
  if (operation == "+" && a.is(Kind::kList) && b.is(Kind::kList) && is_sequence(a) &&
      a.as_list().shape == b.as_list().shape) {
    std::vector<Value> items = a.as_list().items;
    items.insert(items.end(), b.as_list().items.begin(), b.as_list().items.end());
    return Value::list(std::move(items), a.as_list().shape);
  }
  if (operation == "*" && is_sequence(a) && (b.is(Kind::kInt) || b.is(Kind::kBool))) {
    return repeat(a, b.as_integer());
  }
  if (operation == "*" && is_sequence(b) && (a.is(Kind::kInt) || a.is(Kind::kBool))) {
    return repeat(b, a.as_integer());
  }
  if (operation == "%" && a.is(Kind::kString)) {
    return data_error("formatting a str with '%' is not supported");
  }
  return operand_error(operation, a, b);
}

StatusOr<Value> negate(const Value& value) {
  if (value.is(Kind::kFloat)) {
    return Value::real(-value.as_real());
  }
  if (!value.is_number()) {
    return value.is(Kind::kUndefined) ? undefined_error(value)
                                      : data_error("'-' cannot be applied to a {}", type_name(value));
  }
  return integer_arithmetic("-", 0, value.as_integer());
}

}  // namespace accord::text::jinja
