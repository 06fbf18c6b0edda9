#pragma once
// The part of the parser that reads expressions.
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "text/jinja/ast.hpp"
#include "text/jinja/lexer.hpp"

namespace accord::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const;
  Token take();
  bool at_operator(std::string_view text, size_t ahead = 0) const;
  bool at_name(std::string_view text, size_t ahead = 0) const;
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  Status expect(Token::Type type, std::string_view text, std::string_view meaning);
  StatusOr<std::string> expect_name(std::string_view meaning);
  Status fail(std::string_view what) const;  // with the place of the next token
  Status unexpected() const;

  StatusOr<ExpressionPtr> parse_expression(bool with_condition = true);
  // A bare `a, b` too. `in_parentheses`: may be empty.
  StatusOr<ExpressionPtr> parse_tuple(bool with_condition = true, bool in_parentheses = false);
  // `| name(arguments) | name ...` around `input`; null: what a block holds.
  StatusOr<ExpressionPtr> parse_filter(ExpressionPtr input);
  StatusOr<ExpressionPtr> parse_filter_list();  // `name(arguments) | name ...` of a filter block

 private:
  using Level = StatusOr<ExpressionPtr> (ExpressionParser::*)();
  StatusOr<ExpressionPtr> parse_or();
  StatusOr<ExpressionPtr> parse_and();
  StatusOr<ExpressionPtr> parse_not();
  StatusOr<ExpressionPtr> parse_compare();
  StatusOr<ExpressionPtr> parse_sum();
  StatusOr<ExpressionPtr> parse_concat();
  StatusOr<ExpressionPtr> parse_product();
  StatusOr<ExpressionPtr> parse_power();
  StatusOr<ExpressionPtr> parse_unary() { return parse_signed(/*with_filter=*/true); }
  StatusOr<ExpressionPtr> parse_signed(bool with_filter);
  StatusOr<ExpressionPtr> parse_primary();
  StatusOr<ExpressionPtr> parse_list();
  StatusOr<ExpressionPtr> parse_dict();
  StatusOr<ExpressionPtr> parse_postfix(ExpressionPtr operand);
  StatusOr<ExpressionPtr> parse_filters_and_tests(ExpressionPtr operand);
  StatusOr<ExpressionPtr> parse_subscript(ExpressionPtr operand);
  StatusOr<ExpressionPtr> parse_index(ExpressionPtr operand);
  StatusOr<ExpressionPtr> parse_test(ExpressionPtr operand);
  StatusOr<ExpressionPtr> parse_one_filter(ExpressionPtr input);
  Status parse_arguments(Expression& call);
  StatusOr<ExpressionPtr> parse_left(Level next, std::initializer_list<std::string_view> operators);

  StatusOr<ExpressionPtr> finish(ExpressionPtr expression) const;  // checks the height of the tree

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace accord::text::jinja
