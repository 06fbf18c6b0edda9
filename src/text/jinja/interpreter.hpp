#pragma once
// Runs a parsed template. Scopes are Jinja's: a loop's body, a macro and a captured block assign to names of
// their own; an `if` does not.
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"
#include "text/jinja/arguments.hpp"
#include "text/jinja/ast.hpp"
#include "text/jinja/objects.hpp"
#include "text/jinja/value.hpp"

namespace accord::text::jinja {

class Interpreter {
 public:
  explicit Interpreter(const std::optional<std::tm>& date) : date_(date) {}

  StatusOr<std::string> render(const Block& block, const Json& variables);
  const Place& place() const { return place_; }  // where an error arose

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  Status run(const Block& block, std::string& out);
  Status run_statement(const Statement& statement, std::string& out);
  Status run_if(const Statement& statement, std::string& out);
  Status run_for(const Statement& statement, std::string& out);
  StatusOr<Value> capture(const Statement& statement);  // its body, through its filters
  Status assign(const Target& target, const Value& value);
  Status append(const Value& value, std::string& out);

  StatusOr<Value> evaluate(const Expression& expression);
  StatusOr<Value> evaluate_kind(const Expression& expression);
  StatusOr<Value> evaluate_optional(const ExpressionPtr& expression, bool& given);
  StatusOr<Value> evaluate_list(const Expression& expression);
  StatusOr<Value> evaluate_dict(const Expression& expression);
  StatusOr<Value> evaluate_attribute(const Expression& expression);
  StatusOr<Value> evaluate_slice(const Expression& expression);
  StatusOr<Value> evaluate_compare(const Expression& expression);
  StatusOr<Value> evaluate_concat(const Expression& expression);
  StatusOr<Value> evaluate_condition(const Expression& expression);
  StatusOr<Value> evaluate_logic(const Expression& expression);
  StatusOr<Value> evaluate_arithmetic(const Expression& expression);
  StatusOr<Value> evaluate_filter(const Expression& expression);
  StatusOr<Value> filter_with(const Expression& expression, const Value& innermost);
  StatusOr<Value> evaluate_test(const Expression& expression);
  StatusOr<Value> evaluate_call(const Expression& expression);
  StatusOr<Arguments> evaluate_arguments(const Expression& expression, size_t first);

  StatusOr<Value> call(const Value& callee, const Arguments& arguments);
  StatusOr<Value> call_function(std::string_view name, const Arguments& arguments);
  StatusOr<Value> call_macro(const Macro& macro, const Arguments& arguments);
  StatusOr<Value> call_range(const Arguments& arguments);
  StatusOr<Value> call_strftime(const Arguments& arguments);
  StatusOr<Value> make_namespace(const Arguments& arguments);

  Value look_up(const std::string& name) const;
  void set_name(const std::string& name, const Value& value);
  Scope* push_scope(Scope* parent);
  template <class T, class... Args>
  T* make_object(Args&&... args);
  Status charge(const Value& value);  // counts work against the limit

  std::optional<std::tm> date_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<std::unique_ptr<Object>> objects_;
  Scope* scope_ = nullptr;
  Flow flow_ = Flow::kNext;
  Place place_;
  int depth_ = 0;
  int64_t loop_depth_ = 0;
  int64_t work_ = 0;
};

}  // namespace accord::text::jinja
