#pragma once
// A parsed template.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/place.hpp"
#include "text/jinja/value.hpp"

namespace accord::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kConstant,
    kName,
    kList,
    kTuple,
    kDict,       // operands: key, value, key, value, ...
    kAttribute,  // operand . name
    kItem,       // operand [ operand ]
    kSlice,      // operand [ start : stop : step ], each of the three may be null
    kCall,       // operand ( rest..., named... )
    kFilter,     // operand | name(rest..., named...)
    kTest,       // operand is name(rest..., named...)
    kNot,
    kNegate,
    kPlus,
    kAnd,
    kOr,
    kArithmetic,  // name: + - * / // % **
    kCompare,     // operand operators[0] operand operators[1] operand ...
    kConcat,      // ~
    kCondition,   // value, test, other (may be null)
  };
  Kind kind = Kind::kConstant;
  Place place;
  int height = 1;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<Statement>;

// What `for` and `set` assign to: a name, a tuple of names, or a namespace's attribute.
struct Target {
  std::vector<std::string> names;
  bool is_tuple = false;
  std::string attribute;
};

struct Branch {
  ExpressionPtr test;  // null: else
  std::unique_ptr<Block> body;
};

struct Parameter {
  std::string name;
  ExpressionPtr missing;  // null: undefined
};

struct Statement {
  enum class Kind : uint8_t {
    kText,
    kPrint,
    kIf,
    kFor,       // target in value if test; body; other
    kSet,       // target = value
    kSetBlock,  // target = filters of body
    kMacro,     // name(parameters) body
    kScope,     // body in a scope of its own
    kFilter,    // value holds the filters of body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  Place place;
  std::string text;  // also the macro's name
  Target target;
  ExpressionPtr value;
  ExpressionPtr test;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::unique_ptr<Block> body;
  std::unique_ptr<Block> other;
};

}  // namespace accord::text::jinja
