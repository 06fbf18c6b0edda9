#include "text/jinja/expression_parser.hpp"

#include <algorithm>

namespace accord::text::jinja {
namespace {

using Kind = Expression::Kind;
using Type = Token::Type;

constexpr int kMaxHeight = 200;  // of an expression's tree
constexpr int kMaxDepth = 60;    // of expressions within expressions

ExpressionPtr make(Kind kind, Place place, std::string name = "") {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->place = place;
  expression->name = std::move(name);
  return expression;
}

template <class... Operands>
ExpressionPtr make_with(Kind kind, Place place, std::string name, Operands... operands) {
  ExpressionPtr expression = make(kind, place, std::move(name));
  (expression->operands.push_back(std::move(operands)), ...);
  return expression;
}

}  // namespace

const Token& ExpressionParser::peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}
Token ExpressionParser::take() {
  Token token = peek();
  at_ = std::min(at_ + 1, tokens_.size() - 1);
  return token;
}
bool ExpressionParser::at_operator(std::string_view text, size_t ahead) const {
  return peek(ahead).type == Type::kOperator && peek(ahead).text == text;
}
bool ExpressionParser::at_name(std::string_view text, size_t ahead) const {
  return peek(ahead).type == Type::kName && peek(ahead).text == text;
}
bool ExpressionParser::skip_operator(std::string_view text) {
  const bool found = at_operator(text);
  at_ += found ? 1 : 0;
  return found;
}
bool ExpressionParser::skip_name(std::string_view text) {
  const bool found = at_name(text);
  at_ += found ? 1 : 0;
  return found;
}
Status ExpressionParser::fail(std::string_view what) const {
  return data_error("{}: {}", describe(peek().place), what);
}
Status ExpressionParser::unexpected() const {
  switch (peek().type) {
    case Type::kEnd:
      return fail("the template ends too early");
    case Type::kPrintEnd:
    case Type::kBlockEnd:
      return fail("a tag ends too early");
    case Type::kString:
      return fail("unexpected text in quotes");
    case Type::kInteger:
    case Type::kFloat:
      return fail("unexpected number");
    default:
      return fail(fmt::format("unexpected '{}'", printable(peek().text)));
  }
}
Status ExpressionParser::expect(Type type, std::string_view text, std::string_view meaning) {
  if (peek().type != type || (!text.empty() && peek().text != text)) {
    return annotate(unexpected(), fmt::format("expected {}", meaning));
  }
  take();
  return absl::OkStatus();
}
StatusOr<std::string> ExpressionParser::expect_name(std::string_view meaning) {
  if (peek().type != Type::kName) {
    return annotate(unexpected(), fmt::format("expected {}", meaning));
  }
  return take().text;
}

StatusOr<ExpressionPtr> ExpressionParser::finish(ExpressionPtr expression) const {
  const auto see = [&](const ExpressionPtr& part) {
    expression->height = std::max(expression->height, part == nullptr ? 1 : 1 + part->height);
  };
  for (const ExpressionPtr& operand : expression->operands) {
    see(operand);
  }
  for (const auto& named : expression->named) {
    see(named.second);
  }
  if (expression->height > kMaxHeight) {
    return data_error("{}: an expression of more than {} levels", describe(expression->place), kMaxHeight);
  }
  return expression;
}

StatusOr<ExpressionPtr> ExpressionParser::parse_expression(bool with_condition) {
  if (depth_ >= kMaxDepth) {
    return fail(fmt::format("expressions are nested more than {} deep", kMaxDepth));
  }
  ++depth_;
  StatusOr<ExpressionPtr> value = parse_or();
  while (value.ok() && with_condition && at_name("if")) {
    const Place place = take().place;
    StatusOr<ExpressionPtr> test = parse_or();
    if (!test.ok()) {
      return test;
    }
    ExpressionPtr other;
    if (skip_name("else")) {
      ACCORD_ASSIGN_OR_RETURN(other, parse_expression());
    }
    value =
        finish(make_with(Kind::kCondition, place, "", *std::move(value), *std::move(test), std::move(other)));
  }
  --depth_;
  return value;
}

StatusOr<ExpressionPtr> ExpressionParser::parse_tuple(bool with_condition, bool in_parentheses) {
  ExpressionPtr tuple = make(Kind::kTuple, peek().place);
  if (in_parentheses && at_operator(")")) {
    return tuple;
  }
  bool has_comma = false;
  do {
    const bool ends = peek().type == Type::kPrintEnd || peek().type == Type::kBlockEnd || at_operator(")");
    if (has_comma && ends) {
      break;
    }
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression(with_condition));
    tuple->operands.push_back(std::move(item));
    has_comma = has_comma || at_operator(",");
  } while (skip_operator(","));
  if (!has_comma) {
    return std::move(tuple->operands.front());
  }
  return finish(std::move(tuple));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_or() {
  ACCORD_ASSIGN_OR_RETURN(ExpressionPtr left, parse_and());
  while (at_name("or")) {
    const Place place = take().place;
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr right, parse_and());
    ACCORD_ASSIGN_OR_RETURN(left, finish(make_with(Kind::kOr, place, "", std::move(left), std::move(right))));
  }
  return left;
}

StatusOr<ExpressionPtr> ExpressionParser::parse_and() {
  ACCORD_ASSIGN_OR_RETURN(ExpressionPtr left, parse_not());
  while (at_name("and")) {
    const Place place = take().place;
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr right, parse_not());
    ACCORD_ASSIGN_OR_RETURN(left,
                            finish(make_with(Kind::kAnd, place, "", std::move(left), std::move(right))));
  }
  return left;
}

StatusOr<ExpressionPtr> ExpressionParser::parse_not() {
  int count = 0;
  const Place place = peek().place;
  while (skip_name("not")) {
    ++count;
  }
  ACCORD_ASSIGN_OR_RETURN(ExpressionPtr operand, parse_compare());
  for (; count > 0; --count) {
    ACCORD_ASSIGN_OR_RETURN(operand, finish(make_with(Kind::kNot, place, "", std::move(operand))));
  }
  return operand;
}

StatusOr<ExpressionPtr> ExpressionParser::parse_compare() {
  ExpressionPtr chain = make(Kind::kCompare, peek().place);
  ACCORD_ASSIGN_OR_RETURN(ExpressionPtr first, parse_sum());
  chain->operands.push_back(std::move(first));
  while (true) {
    std::string name;
    for (const std::string_view each : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (name.empty() && skip_operator(each)) {
        name = each;
      }
    }
    if (name.empty() && skip_name("in")) {
      name = "in";
    } else if (name.empty() && at_name("not") && at_name("in", 1)) {
      take();
      take();
      name = "not in";
    }
    if (name.empty()) {
      break;
    }
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr next, parse_sum());
    chain->operators.push_back(std::move(name));
    chain->operands.push_back(std::move(next));
  }
  if (chain->operators.empty()) {
    return std::move(chain->operands.front());
  }
  return finish(std::move(chain));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_left(Level next,
                                                     std::initializer_list<std::string_view> operators) {
  ACCORD_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*next)());
  while (true) {
    const auto found = std::find_if(operators.begin(), operators.end(),
                                    [&](std::string_view each) { return at_operator(each); });
    if (found == operators.end()) {
      return left;
    }
    const Place place = take().place;
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*next)());
    ACCORD_ASSIGN_OR_RETURN(left, finish(make_with(Kind::kArithmetic, place, std::string(*found),
                                                   std::move(left), std::move(right))));
  }
}

StatusOr<ExpressionPtr> ExpressionParser::parse_sum() {
  return parse_left(&ExpressionParser::parse_concat, {"+", "-"});
}
StatusOr<ExpressionPtr> ExpressionParser::parse_product() {
  return parse_left(&ExpressionParser::parse_power, {"*", "/", "//", "%"});
}
StatusOr<ExpressionPtr> ExpressionParser::parse_power() {
  return parse_left(&ExpressionParser::parse_unary, {"**"});
}

StatusOr<ExpressionPtr> ExpressionParser::parse_concat() {
  ExpressionPtr concat = make(Kind::kConcat, peek().place);
  do {
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr part, parse_product());
    concat->operands.push_back(std::move(part));
  } while (skip_operator("~"));
  if (concat->operands.size() == 1) {
    return std::move(concat->operands.front());
  }
  return finish(std::move(concat));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_signed(bool with_filter) {
  ExpressionPtr operand;
  if (at_operator("-") || at_operator("+")) {
    if (depth_ >= kMaxDepth) {
      return fail("too many signs");
    }
    const Token sign = take();
    ++depth_;
    ACCORD_ASSIGN_OR_RETURN(operand, parse_signed(/*with_filter=*/false));
    --depth_;
    ACCORD_ASSIGN_OR_RETURN(operand, finish(make_with(sign.text == "-" ? Kind::kNegate : Kind::kPlus,
                                                      sign.place, "", std::move(operand))));
  } else {
    ACCORD_ASSIGN_OR_RETURN(operand, parse_primary());
  }
  ACCORD_ASSIGN_OR_RETURN(operand, parse_postfix(std::move(operand)));
  return with_filter ? parse_filters_and_tests(std::move(operand))
                     : StatusOr<ExpressionPtr>(std::move(operand));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_primary() {
  const Place place = peek().place;
  ExpressionPtr constant = make(Kind::kConstant, place);
  switch (peek().type) {
    case Type::kName: {
      const std::string name = take().text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        constant->constant = Value::boolean(name == "true" || name == "True");
        return constant;
      }
      if (name == "none" || name == "None") {
        constant->constant = Value::none();
        return constant;
      }
      return make(Kind::kName, place, name);
    }
    case Type::kString: {
      std::string text;
      while (peek().type == Type::kString) {
        text += take().text;
      }
      ACCORD_ASSIGN_OR_RETURN(constant->constant, Value::string(std::move(text)));
      return constant;
    }
    case Type::kInteger:
      constant->constant = Value::integer(take().integer);
      return constant;
    case Type::kFloat:
      constant->constant = Value::real(take().real);
      return constant;
    default:
      break;
  }
  if (skip_operator("(")) {
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr inner,
                            parse_tuple(/*with_condition=*/true, /*in_parentheses=*/true));
    ACCORD_RETURN_IF_ERROR(expect(Type::kOperator, ")", "')'"));
    return inner;
  }
  if (at_operator("[")) {
    return parse_list();
  }
  if (at_operator("{")) {
    return parse_dict();
  }
  return unexpected();
}

StatusOr<ExpressionPtr> ExpressionParser::parse_list() {
  ExpressionPtr list = make(Kind::kList, take().place);
  while (!at_operator("]")) {
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression());
    list->operands.push_back(std::move(item));
    if (!skip_operator(",")) {
      break;
    }
  }
  ACCORD_RETURN_IF_ERROR(expect(Type::kOperator, "]", "',' or ']' in a list"));
  return finish(std::move(list));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_dict() {
  ExpressionPtr dict = make(Kind::kDict, take().place);
  while (!at_operator("}")) {
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr key, parse_expression());
    ACCORD_RETURN_IF_ERROR(expect(Type::kOperator, ":", "':' in a dict"));
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
    dict->operands.push_back(std::move(key));
    dict->operands.push_back(std::move(value));
    if (!skip_operator(",")) {
      break;
    }
  }
  ACCORD_RETURN_IF_ERROR(expect(Type::kOperator, "}", "',' or '}' in a dict"));
  return finish(std::move(dict));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_postfix(ExpressionPtr operand) {
  while (true) {
    if (at_operator(".") || at_operator("[")) {
      ACCORD_ASSIGN_OR_RETURN(operand, parse_subscript(std::move(operand)));
    } else if (at_operator("(")) {
      ExpressionPtr call = make_with(Kind::kCall, peek().place, "", std::move(operand));
      ACCORD_RETURN_IF_ERROR(parse_arguments(*call));
      ACCORD_ASSIGN_OR_RETURN(operand, finish(std::move(call)));
    } else {
      return operand;
    }
  }
}

StatusOr<ExpressionPtr> ExpressionParser::parse_subscript(ExpressionPtr operand) {
  const Token opening = take();
  if (opening.text == "[") {
    return parse_index(std::move(operand));
  }
  if (peek().type == Type::kInteger) {
    ExpressionPtr index = make(Kind::kConstant, peek().place);
    index->constant = Value::integer(take().integer);
    return finish(make_with(Kind::kItem, opening.place, "", std::move(operand), std::move(index)));
  }
  ACCORD_ASSIGN_OR_RETURN(std::string name, expect_name("a name after '.'"));
  return finish(make_with(Kind::kAttribute, opening.place, std::move(name), std::move(operand)));
}

// Behind '['.
StatusOr<ExpressionPtr> ExpressionParser::parse_index(ExpressionPtr operand) {
  const Place place = peek().place;
  ExpressionPtr parts[3];
  bool is_slice = false;
  for (size_t i = 0; i < 3; ++i) {
    if (!at_operator(":") && !at_operator("]")) {
      ACCORD_ASSIGN_OR_RETURN(parts[i], parse_expression());
    }
    if (i == 2 || !skip_operator(":")) {
      break;
    }
    is_slice = true;
  }
  if (!is_slice && parts[0] == nullptr) {
    return unexpected();
  }
  ACCORD_RETURN_IF_ERROR(expect(Type::kOperator, "]", "']'"));
  if (!is_slice) {
    return finish(make_with(Kind::kItem, place, "", std::move(operand), std::move(parts[0])));
  }
  return finish(make_with(Kind::kSlice, place, "", std::move(operand), std::move(parts[0]),
                          std::move(parts[1]), std::move(parts[2])));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_filters_and_tests(ExpressionPtr operand) {
  while (true) {
    if (at_operator("|")) {
      ACCORD_ASSIGN_OR_RETURN(operand, parse_filter(std::move(operand)));
    } else if (skip_name("is")) {
      ACCORD_ASSIGN_OR_RETURN(operand, parse_test(std::move(operand)));
    } else if (at_operator("(")) {
      return fail("calling the result of a filter or test is not supported");
    } else {
      return operand;
    }
  }
}

StatusOr<ExpressionPtr> ExpressionParser::parse_filter(ExpressionPtr input) {
  while (skip_operator("|")) {
    ACCORD_ASSIGN_OR_RETURN(input, parse_one_filter(std::move(input)));
  }
  return input;
}

StatusOr<ExpressionPtr> ExpressionParser::parse_filter_list() {
  ACCORD_ASSIGN_OR_RETURN(ExpressionPtr first, parse_one_filter(nullptr));
  return parse_filter(std::move(first));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_one_filter(ExpressionPtr input) {
  const Place place = peek().place;
  ACCORD_ASSIGN_OR_RETURN(std::string name, expect_name("a filter's name"));
  if (at_operator(".")) {
    return fail("filters with a '.' in their name are not supported");
  }
  ExpressionPtr filter = make_with(Kind::kFilter, place, std::move(name), std::move(input));
  if (at_operator("(")) {
    ACCORD_RETURN_IF_ERROR(parse_arguments(*filter));
  }
  return finish(std::move(filter));
}

StatusOr<ExpressionPtr> ExpressionParser::parse_test(ExpressionPtr operand) {
  const bool negated = skip_name("not");
  const Place place = peek().place;
  ACCORD_ASSIGN_OR_RETURN(std::string name, expect_name("a test's name after 'is'"));
  ExpressionPtr test = make_with(Kind::kTest, place, std::move(name), std::move(operand));
  const Type next = peek().type;
  const bool starts_value = next == Type::kString || next == Type::kInteger || next == Type::kFloat ||
                            at_operator("[") || at_operator("{") ||
                            (next == Type::kName && !at_name("else") && !at_name("or") && !at_name("and"));
  if (at_operator("(")) {
    ACCORD_RETURN_IF_ERROR(parse_arguments(*test));
  } else if (starts_value) {
    if (at_name("is")) {
      return fail("tests cannot be chained with 'is'");
    }
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr argument, parse_primary());
    ACCORD_ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument)));
    test->operands.push_back(std::move(argument));
  }
  ACCORD_ASSIGN_OR_RETURN(test, finish(std::move(test)));
  return negated ? finish(make_with(Kind::kNot, place, "", std::move(test)))
                 : StatusOr<ExpressionPtr>(std::move(test));
}

Status ExpressionParser::parse_arguments(Expression& call) {
  ACCORD_RETURN_IF_ERROR(expect(Type::kOperator, "(", "'('"));
  while (!at_operator(")")) {
    if (at_operator("*") || at_operator("**")) {
      return fail("arguments spread with * or ** are not supported");
    }
    std::string name;
    if (peek().type == Type::kName && at_operator("=", 1)) {
      name = take().text;
      take();
    } else if (!call.named.empty()) {
      return fail("a positional argument comes after a named one");
    }
    ACCORD_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
    if (name.empty()) {
      call.operands.push_back(std::move(value));
    } else {
      call.named.emplace_back(std::move(name), std::move(value));
    }
    if (!skip_operator(",")) {
      break;
    }
  }
  return expect(Type::kOperator, ")", "',' or ')' in a call");
}

}  // namespace accord::text::jinja
