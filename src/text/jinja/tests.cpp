// Tests (`x is name`) by name.
#include <algorithm>

#include "text/jinja/objects.hpp"
#include "text/jinja/operations.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;

bool is_callable(const Value& value) {
  return value.is(Kind::kObject) && value.as_object()->kind != Object::Kind::kNamespace &&
         value.as_object()->kind != Object::Kind::kLoop;
}

bool is_iterable(const Value& value) {
  return value.is(Kind::kUndefined) || value.is(Kind::kString) || value.is(Kind::kList) ||
         value.is(Kind::kDict);
}

StatusOr<bool> test_case(const Value& input, std::string_view method) {
  if (!input.is(Kind::kString)) {
    return data_error("the tests lower and upper need a str, not a {}", type_name(input));
  }
  ACCORD_ASSIGN_OR_RETURN(const Value result, call_method(input, method, {}));
  return result.as_bool();
}

StatusOr<bool> divides(const Value& input, const Value& divisor) {
  ACCORD_ASSIGN_OR_RETURN(const Value remainder, arithmetic("%", input, divisor));
  return !truthy(remainder);
}

// Tests with one argument.
StatusOr<bool> test_pair(std::string_view name, const Value& a, const Value& b) {
  if (name == "eq" || name == "equalto") {
    return equal(a, b);
  }
  if (name == "ne") {
    return !equal(a, b);
  }
  if (name == "in") {
    return contains(b, a);
  }
  if (name == "sameas") {
    if (a.is(Kind::kList) || a.is(Kind::kDict) || a.is(Kind::kString)) {
      return data_error("the test sameas of a {} is not supported", type_name(a));
    }
    return a.kind() == b.kind() && equal(a, b);
  }
  if (name == "divisibleby") {
    return divides(a, b);
  }
  ACCORD_ASSIGN_OR_RETURN(const int order, compare(a, b));
  if (name == "lt" || name == "lessthan") {
    return order < 0;
  }
  if (name == "le") {
    return order <= 0;
  }
  return name == "ge" ? order >= 0 : order > 0;
}

}  // namespace

StatusOr<bool> apply_test(std::string_view name, const Value& input, const Arguments& arguments) {
  for (const std::string_view each : {"eq", "equalto", "ne", "in", "sameas", "divisibleby", "lt", "lessthan",
                                      "le", "ge", "gt", "greaterthan"}) {
    if (name == each) {
      ACCORD_RETURN_IF_ERROR(arguments.accept(name, {"other"}));
      if (arguments.positional.size() != 1) {
        return data_error("the test {} needs one argument", name);
      }
      return test_pair(name, input, arguments.positional[0]);
    }
  }
  ACCORD_RETURN_IF_ERROR(arguments.accept(name, {}));
  if (name == "defined" || name == "undefined") {
    return input.is(Kind::kUndefined) == (name == "undefined");
  }
  if (name == "none") {
    return input.is(Kind::kNone);
  }
  if (name == "string") {
    return input.is(Kind::kString);
  }
  if (name == "mapping") {
    return input.is(Kind::kDict);
  }
  if (name == "iterable") {
    return is_iterable(input);
  }
  if (name == "sequence") {
    const bool lazy = input.is(Kind::kList) && input.as_list().shape != Shape::kList &&
                      input.as_list().shape != Shape::kTuple;
    return is_iterable(input) && !lazy;
  }
  if (name == "number") {
    return input.is_number();
  }
  if (name == "integer") {
    return input.is(Kind::kInt);
  }
  if (name == "float") {
    return input.is(Kind::kFloat);
  }
  if (name == "boolean") {
    return input.is(Kind::kBool);
  }
  if (name == "true" || name == "false") {
    return input.is(Kind::kBool) && input.as_bool() == (name == "true");
  }
  if (name == "callable") {
    return is_callable(input) || input.is(Kind::kUndefined);  // as Jinja has it
  }
  if (name == "odd" || name == "even") {
    ACCORD_ASSIGN_OR_RETURN(const bool even, divides(input, Value::integer(2)));
    return even == (name == "even");
  }
  if (name == "lower" || name == "upper") {
    return test_case(input, name == "lower" ? "islower" : "isupper");
  }
  return data_error("the test '{}' is not supported", printable(name));
}

}  // namespace accord::text::jinja
