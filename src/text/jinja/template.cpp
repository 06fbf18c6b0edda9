#include "text/jinja/template.hpp"

#include <utility>

#include "text/jinja/interpreter.hpp"
#include "text/jinja/parser.hpp"

namespace accord::text::jinja {

struct Template::Parsed {
  Block block;
};

Template::Template(std::unique_ptr<Parsed> parsed, std::string origin)
    : parsed_(std::move(parsed)), origin_(std::move(origin)) {}
Template::~Template() = default;

StatusOr<std::unique_ptr<Template>> Template::parse(std::string_view source, std::string origin) {
  StatusOr<Block> block = jinja::parse(source);
  if (!block.ok()) {
    return recipe_error("{}: {}", origin, std::string_view(message_of(block.status())));
  }
  auto parsed = std::make_unique<Parsed>(Parsed{*std::move(block)});
  return std::unique_ptr<Template>(new Template(std::move(parsed), std::move(origin)));
}

StatusOr<std::string> Template::render(const Json& variables, const std::optional<std::tm>& date) const {
  Interpreter interpreter(date);
  StatusOr<std::string> text = interpreter.render(parsed_->block, variables);
  if (!text.ok()) {
    return annotate(text.status(), fmt::format("{}: {}", origin_, describe(interpreter.place())));
  }
  return text;
}

}  // namespace accord::text::jinja
