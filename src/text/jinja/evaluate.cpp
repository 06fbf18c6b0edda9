// The interpreter's expressions.
#include <utility>

#include "text/jinja/interpreter.hpp"
#include "text/jinja/operations.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;
constexpr int kMaxDepth = 400;  // of evaluations within each other, through macros

}  // namespace

StatusOr<Value> Interpreter::evaluate(const Expression& expression) {
  place_ = expression.place;
  if (++depth_ > kMaxDepth) {
    return data_error("macros call each other too deeply");
  }
  StatusOr<Value> value = evaluate_kind(expression);
  --depth_;
  if (value.ok()) {
    ACCORD_RETURN_IF_ERROR(charge(*value));
  }
  return value;
}

StatusOr<Value> Interpreter::evaluate_kind(const Expression& expression) {
  switch (expression.kind) {
    case Expression::Kind::kConstant:
      return expression.constant;
    case Expression::Kind::kName:
      return look_up(expression.name);
    case Expression::Kind::kList:
    case Expression::Kind::kTuple:
      return evaluate_list(expression);
    case Expression::Kind::kDict:
      return evaluate_dict(expression);
    case Expression::Kind::kAttribute:
      return evaluate_attribute(expression);
    case Expression::Kind::kItem: {
      ACCORD_ASSIGN_OR_RETURN(const Value holder, evaluate(*expression.operands[0]));
      ACCORD_ASSIGN_OR_RETURN(const Value key, evaluate(*expression.operands[1]));
      ACCORD_RETURN_IF_ERROR(charge(holder));
      return get_item(holder, key);
    }
    case Expression::Kind::kSlice:
      return evaluate_slice(expression);
    case Expression::Kind::kCall:
      return evaluate_call(expression);
    case Expression::Kind::kFilter:
      return evaluate_filter(expression);
    case Expression::Kind::kTest:
      return evaluate_test(expression);
    case Expression::Kind::kNot: {
      ACCORD_ASSIGN_OR_RETURN(const Value value, evaluate(*expression.operands[0]));
      return Value::boolean(!truthy(value));
    }
    case Expression::Kind::kAnd:
    case Expression::Kind::kOr:
      return evaluate_logic(expression);
    case Expression::Kind::kNegate:
    case Expression::Kind::kPlus:
    case Expression::Kind::kArithmetic:
      return evaluate_arithmetic(expression);
    case Expression::Kind::kCompare:
      return evaluate_compare(expression);
    case Expression::Kind::kConcat:
      return evaluate_concat(expression);
    case Expression::Kind::kCondition:
      return evaluate_condition(expression);
  }
  return Value();
}

StatusOr<Value> Interpreter::evaluate_list(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& operand : expression.operands) {
    ACCORD_ASSIGN_OR_RETURN(Value item, evaluate(*operand));
    items.push_back(std::move(item));
  }
  return Value::list(std::move(items),
                     expression.kind == Expression::Kind::kTuple ? Shape::kTuple : Shape::kList);
}

StatusOr<Value> Interpreter::evaluate_dict(const Expression& expression) {
  std::vector<std::pair<std::string, Value>> members;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    ACCORD_ASSIGN_OR_RETURN(const Value key, evaluate(*expression.operands[i]));
    ACCORD_ASSIGN_OR_RETURN(Value value, evaluate(*expression.operands[i + 1]));
    if (!key.is(Kind::kString)) {
      return data_error("a dict's keys must be texts here, not a {}", type_name(key));
    }
    bool known = false;
    for (auto& member : members) {
      if (member.first == key.as_string()) {
        member.second = value;
        known = true;
      }
    }
    if (!known) {
      members.emplace_back(key.as_string(), std::move(value));
    }
    work_ += static_cast<int64_t>(members.size() / 16);
  }
  return Value::dict(std::move(members));
}

StatusOr<Value> Interpreter::evaluate_attribute(const Expression& expression) {
  ACCORD_ASSIGN_OR_RETURN(const Value holder, evaluate(*expression.operands[0]));
  if (expression.name.starts_with('_')) {
    return data_error("the attribute '{}' is not supported", printable(expression.name));
  }
  if (is_method(holder, expression.name)) {
    objects_.push_back(std::make_unique<Method>(holder, expression.name));
    return Value::object(objects_.back().get());
  }
  return get_attribute(holder, expression.name);
}

StatusOr<Value> Interpreter::evaluate_optional(const ExpressionPtr& expression, bool& given) {
  given = expression != nullptr;
  return given ? evaluate(*expression) : StatusOr<Value>(Value());
}

StatusOr<Value> Interpreter::evaluate_slice(const Expression& expression) {
  ACCORD_ASSIGN_OR_RETURN(const Value holder, evaluate(*expression.operands[0]));
  bool has_start = false;
  bool has_stop = false;
  bool has_step = false;
  ACCORD_ASSIGN_OR_RETURN(const Value start, evaluate_optional(expression.operands[1], has_start));
  ACCORD_ASSIGN_OR_RETURN(const Value stop, evaluate_optional(expression.operands[2], has_stop));
  ACCORD_ASSIGN_OR_RETURN(const Value step, evaluate_optional(expression.operands[3], has_step));
  ACCORD_RETURN_IF_ERROR(charge(holder));
  return get_slice(holder, has_start ? &start : nullptr, has_stop ? &stop : nullptr,
                   has_step ? &step : nullptr);
}

StatusOr<Value> Interpreter::evaluate_compare(const Expression& expression) {
  ACCORD_ASSIGN_OR_RETURN(Value left, evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    const std::string& name = expression.operators[i];
    ACCORD_ASSIGN_OR_RETURN(Value right, evaluate(*expression.operands[i + 1]));
    ACCORD_RETURN_IF_ERROR(charge(left));
    bool holds = false;
    if (name == "==" || name == "!=") {
      holds = equal(left, right) == (name == "==");
    } else if (name == "in" || name == "not in") {
      ACCORD_ASSIGN_OR_RETURN(const bool found, contains(right, left));
      holds = found == (name == "in");
    } else {
      ACCORD_ASSIGN_OR_RETURN(const int order, compare(left, right));
      holds = name == "<" ? order < 0 : name == ">" ? order > 0 : name == "<=" ? order <= 0 : order >= 0;
    }
    if (!holds) {
      return Value::boolean(false);
    }
    left = std::move(right);
  }
  return Value::boolean(true);
}

StatusOr<Value> Interpreter::evaluate_concat(const Expression& expression) {
  std::string text;
  for (const ExpressionPtr& operand : expression.operands) {
    ACCORD_ASSIGN_OR_RETURN(const Value value, evaluate(*operand));
    ACCORD_RETURN_IF_ERROR(append(value, text));
  }
  return Value::string(std::move(text));
}

StatusOr<Value> Interpreter::evaluate_condition(const Expression& expression) {
  ACCORD_ASSIGN_OR_RETURN(const Value test, evaluate(*expression.operands[1]));
  if (truthy(test)) {
    return evaluate(*expression.operands[0]);
  }
  if (expression.operands[2] == nullptr) {
    return Value::undefined("the result of an 'if' without 'else'");
  }
  return evaluate(*expression.operands[2]);
}

StatusOr<Value> Interpreter::evaluate_logic(const Expression& expression) {
  ACCORD_ASSIGN_OR_RETURN(Value left, evaluate(*expression.operands[0]));
  if (truthy(left) == (expression.kind == Expression::Kind::kOr)) {
    return left;
  }
  return evaluate(*expression.operands[1]);
}

StatusOr<Value> Interpreter::evaluate_arithmetic(const Expression& expression) {
  ACCORD_ASSIGN_OR_RETURN(const Value left, evaluate(*expression.operands[0]));
  if (expression.kind == Expression::Kind::kNegate) {
    return negate(left);
  }
  if (expression.kind == Expression::Kind::kPlus) {
    return left.is_number() ? StatusOr<Value>(left)
                            : data_error("'+' cannot be applied to a {}", type_name(left));
  }
  ACCORD_ASSIGN_OR_RETURN(const Value right, evaluate(*expression.operands[1]));
  place_ = expression.place;
  return arithmetic(expression.name, left, right);
}

StatusOr<Value> Interpreter::evaluate_filter(const Expression& expression) {
  return filter_with(expression, Value());
}

// A null operand stands for `innermost`: what a block holds.
StatusOr<Value> Interpreter::filter_with(const Expression& expression, const Value& innermost) {
  const ExpressionPtr& operand = expression.operands[0];
  Value input = innermost;
  if (operand != nullptr) {
    ACCORD_ASSIGN_OR_RETURN(input, operand->kind == Expression::Kind::kFilter
                                       ? filter_with(*operand, innermost)
                                       : evaluate(*operand));
  }
  ACCORD_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expression, 1));
  place_ = expression.place;
  ACCORD_RETURN_IF_ERROR(charge(input));
  return apply_filter(expression.name, input, arguments);
}

StatusOr<Value> Interpreter::evaluate_test(const Expression& expression) {
  ACCORD_ASSIGN_OR_RETURN(const Value input, evaluate(*expression.operands[0]));
  ACCORD_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expression, 1));
  place_ = expression.place;
  ACCORD_ASSIGN_OR_RETURN(const bool holds, apply_test(expression.name, input, arguments));
  return Value::boolean(holds);
}

StatusOr<Arguments> Interpreter::evaluate_arguments(const Expression& expression, size_t first) {
  Arguments arguments;
  for (size_t i = first; i < expression.operands.size(); ++i) {
    ACCORD_ASSIGN_OR_RETURN(Value value, evaluate(*expression.operands[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, operand] : expression.named) {
    ACCORD_ASSIGN_OR_RETURN(Value value, evaluate(*operand));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

StatusOr<Value> Interpreter::evaluate_call(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  // A method is called on its receiver without making a value of it first.
  if (callee.kind == Expression::Kind::kAttribute) {
    ACCORD_ASSIGN_OR_RETURN(const Value receiver, evaluate(*callee.operands[0]));
    if (is_method(receiver, callee.name)) {
      ACCORD_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expression, 1));
      place_ = expression.place;
      ACCORD_RETURN_IF_ERROR(charge(receiver));
      return call_method(receiver, callee.name, arguments);
    }
    ACCORD_ASSIGN_OR_RETURN(const Value function, get_attribute(receiver, callee.name));
    ACCORD_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expression, 1));
    place_ = expression.place;
    return call(function, arguments);
  }
  ACCORD_ASSIGN_OR_RETURN(const Value function, evaluate(callee));
  ACCORD_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expression, 1));
  place_ = expression.place;
  return call(function, arguments);
}

}  // namespace accord::text::jinja
