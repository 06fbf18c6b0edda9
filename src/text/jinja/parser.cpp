#include "text/jinja/parser.hpp"

#include <algorithm>
#include <array>

#include "text/jinja/expression_parser.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Statement::Kind;
using Type = Token::Type;

constexpr int kMaxBlocks = 60;  // within each other

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  StatusOr<Block> parse_template() {
    std::string end;
    ACCORD_ASSIGN_OR_RETURN(Block block, parse_block({}, end));
    return block;
  }

 private:
  // Up to one of the tags in `ends`, whose name is left in `end` and whose arguments come next; no ends: up
  // to the end of the template.
  StatusOr<Block> parse_block(std::initializer_list<std::string_view> ends, std::string& end) {
    if (++depth_ > kMaxBlocks) {
      return in_.fail(fmt::format("blocks are nested more than {} deep", kMaxBlocks));
    }
    const Place place = in_.peek().place;
    Block block;
    while (in_.peek().type != Type::kEnd) {
      Statement statement;
      statement.place = in_.peek().place;
      const Token token = in_.take();
      if (token.type == Type::kData) {
        statement.text = token.text;
      } else if (token.type == Type::kPrintBegin) {
        statement.kind = Kind::kPrint;
        ACCORD_ASSIGN_OR_RETURN(statement.value, in_.parse_tuple());
        ACCORD_RETURN_IF_ERROR(in_.expect(Type::kPrintEnd, "", "}} at the end of a print"));
      } else {
        const auto found =
            std::find_if(ends.begin(), ends.end(), [&](auto name) { return in_.at_name(name); });
        if (found != ends.end()) {
          end = *found;
          in_.take();
          --depth_;
          return block;
        }
        ACCORD_RETURN_IF_ERROR(parse_tag(statement));
      }
      block.push_back(std::move(statement));
    }
    if (ends.size() != 0) {
      return data_error("{}: a block is not closed with {}", describe(place), *(ends.end() - 1));
    }
    --depth_;
    return block;
  }

  StatusOr<std::unique_ptr<Block>> parse_body(std::string_view closing) {
    std::string end;
    ACCORD_ASSIGN_OR_RETURN(Block block, parse_block({closing}, end));
    ACCORD_RETURN_IF_ERROR(end_tag());
    return std::make_unique<Block>(std::move(block));
  }

  Status end_tag() { return in_.expect(Type::kBlockEnd, "", "%} at the end of a block"); }

  Status parse_tag(Statement& statement) {
    ACCORD_ASSIGN_OR_RETURN(const std::string name, in_.expect_name("a block's name after {%"));
    if (name == "if") {
      return parse_if(statement);
    }
    if (name == "for") {
      return parse_for(statement);
    }
    if (name == "set") {
      return parse_set(statement);
    }
    if (name == "macro") {
      return parse_macro(statement);
    }
    if (name == "filter") {
      return parse_filter_block(statement);
    }
    if (name == "generation") {  // marks what the assistant says
      statement.kind = Kind::kScope;
      ACCORD_RETURN_IF_ERROR(end_tag());
      ACCORD_ASSIGN_OR_RETURN(statement.body, parse_body("endgeneration"));
      return absl::OkStatus();
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) {
        return in_.fail(fmt::format("'{}' is outside of a loop", name));
      }
      statement.kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      return end_tag();
    }
    constexpr std::array<std::string_view, 10> kUnsupported = {
        "include", "import", "from", "extends", "block", "call", "with", "autoescape", "do", "trans"};
    if (std::find(kUnsupported.begin(), kUnsupported.end(), name) != kUnsupported.end()) {
      return data_error("{}: '{}' is not supported", describe(statement.place), name);
    }
    return data_error("{}: '{}' does not belong here, or is no block that chat templates have",
                      describe(statement.place), printable(name));
  }

  Status parse_if(Statement& statement) {
    statement.kind = Kind::kIf;
    std::string end = "if";
    while (end != "endif") {
      Branch branch;
      if (end != "else") {
        ACCORD_ASSIGN_OR_RETURN(branch.test, in_.parse_tuple(/*with_condition=*/false));
      }
      ACCORD_RETURN_IF_ERROR(end_tag());
      const bool last = end == "else";
      StatusOr<Block> body = last ? parse_block({"endif"}, end) : parse_block({"elif", "else", "endif"}, end);
      if (!body.ok()) {
        return body.status();
      }
      branch.body = std::make_unique<Block>(*std::move(body));
      statement.branches.push_back(std::move(branch));
    }
    return end_tag();
  }

  StatusOr<Target> parse_target(bool with_attribute) {
    Target target;
    const bool in_parentheses = in_.skip_operator("(");
    do {
      if (!target.names.empty() && in_.peek().type != Type::kName) {
        break;
      }
      ACCORD_ASSIGN_OR_RETURN(std::string name, in_.expect_name("a name to assign to"));
      constexpr std::array<std::string_view, 7> kReserved = {"true",  "false", "none", "True",
                                                             "False", "None",  "loop"};
      if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) {
        return in_.fail(fmt::format("'{}' cannot be assigned to", name));
      }
      target.names.push_back(std::move(name));
      target.is_tuple = target.is_tuple || in_.at_operator(",");
    } while (in_.skip_operator(",") && !in_.at_name("in"));
    if (in_parentheses) {
      ACCORD_RETURN_IF_ERROR(in_.expect(Type::kOperator, ")", "')'"));
    }
    if (with_attribute && !target.is_tuple && in_.skip_operator(".")) {
      ACCORD_ASSIGN_OR_RETURN(target.attribute, in_.expect_name("a name after '.'"));
      if (target.attribute.starts_with('_')) {
        return in_.fail("a namespace's names must not begin with '_'");
      }
    }
    return target;
  }

  Status parse_for(Statement& statement) {
    statement.kind = Kind::kFor;
    ACCORD_ASSIGN_OR_RETURN(statement.target, parse_target(/*with_attribute=*/false));
    ACCORD_RETURN_IF_ERROR(in_.expect(Type::kName, "in", "'in'"));
    ACCORD_ASSIGN_OR_RETURN(statement.value, in_.parse_tuple(/*with_condition=*/false));
    if (in_.skip_name("if")) {
      ACCORD_ASSIGN_OR_RETURN(statement.test, in_.parse_expression());
    }
    if (in_.at_name("recursive")) {
      return in_.fail("recursive loops are not supported");
    }
    ACCORD_RETURN_IF_ERROR(end_tag());
    ++loops_;
    std::string end;
    ACCORD_ASSIGN_OR_RETURN(Block body, parse_block({"else", "endfor"}, end));
    --loops_;
    statement.body = std::make_unique<Block>(std::move(body));
    ACCORD_RETURN_IF_ERROR(end_tag());
    if (end == "else") {
      ACCORD_ASSIGN_OR_RETURN(statement.other, parse_body("endfor"));
    }
    return absl::OkStatus();
  }

  Status parse_set(Statement& statement) {
    ACCORD_ASSIGN_OR_RETURN(statement.target, parse_target(/*with_attribute=*/true));
    if (in_.skip_operator("=")) {
      statement.kind = Kind::kSet;
      ACCORD_ASSIGN_OR_RETURN(statement.value, in_.parse_tuple());
      return end_tag();
    }
    statement.kind = Kind::kSetBlock;
    ACCORD_ASSIGN_OR_RETURN(statement.value, in_.parse_filter(nullptr));
    ACCORD_RETURN_IF_ERROR(end_tag());
    ACCORD_ASSIGN_OR_RETURN(statement.body, parse_separate_body("endset"));
    return absl::OkStatus();
  }

  // A body that is run on its own: `break` in it cannot reach a loop around it.
  StatusOr<std::unique_ptr<Block>> parse_separate_body(std::string_view closing) {
    const int loops = std::exchange(loops_, 0);
    auto body = parse_body(closing);
    loops_ = loops;
    return body;
  }

  Status parse_macro(Statement& statement) {
    statement.kind = Kind::kMacro;
    ACCORD_ASSIGN_OR_RETURN(statement.text, in_.expect_name("the macro's name"));
    ACCORD_RETURN_IF_ERROR(in_.expect(Type::kOperator, "(", "'(' after the macro's name"));
    while (!in_.at_operator(")")) {
      Parameter parameter;
      ACCORD_ASSIGN_OR_RETURN(parameter.name, in_.expect_name("a parameter's name"));
      if (parameter.name == "caller" || parameter.name == "varargs" || parameter.name == "kwargs") {
        return in_.fail(fmt::format("the parameter '{}' is not supported", parameter.name));
      }
      if (in_.skip_operator("=")) {
        ACCORD_ASSIGN_OR_RETURN(parameter.missing, in_.parse_expression());
      } else if (!statement.parameters.empty() && statement.parameters.back().missing != nullptr) {
        return in_.fail("a parameter without a default follows one that has one");
      }
      statement.parameters.push_back(std::move(parameter));
      if (!in_.skip_operator(",")) {
        break;
      }
    }
    ACCORD_RETURN_IF_ERROR(in_.expect(Type::kOperator, ")", "',' or ')' in a macro"));
    ACCORD_RETURN_IF_ERROR(end_tag());
    ACCORD_ASSIGN_OR_RETURN(statement.body, parse_separate_body("endmacro"));
    return absl::OkStatus();
  }

  Status parse_filter_block(Statement& statement) {
    statement.kind = Kind::kFilter;
    // The first filter of a filter block has no bar before it.
    ACCORD_ASSIGN_OR_RETURN(statement.value, in_.parse_filter_list());
    ACCORD_RETURN_IF_ERROR(end_tag());
    ACCORD_ASSIGN_OR_RETURN(statement.body, parse_separate_body("endfilter"));
    return absl::OkStatus();
  }

  ExpressionParser in_;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

StatusOr<Block> parse(std::string_view source) {
  ACCORD_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).parse_template();
}

}  // namespace accord::text::jinja
