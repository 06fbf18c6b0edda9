#include "base/files.hpp"
#include "support/catch.hpp"
#include "text/jinja/template.hpp"
#include "unit/text/support.hpp"

namespace accord::text::jinja {
namespace {

StatusOr<std::string> render(std::string_view source, const Json& variables = Json::object()) {
  ACCORD_ASSIGN_OR_RETURN(const auto parsed, Template::parse(source, "t.jinja"));
  return parsed->render(variables, std::nullopt);
}

std::string error(std::string_view source) {
  const StatusOr<std::string> text = render(source);
  return text.ok() ? "rendered: " + *text : testing::error_of(text.status());
}

}  // namespace

TEST_CASE("Published templates give the reference texts") {
  const Json cases = testing::read_json(testing::data_path("template_cases.json"));
  REQUIRE(!cases.empty());
  for (const Json& each : cases) {
    const std::string name = each.at("template").get<std::string>();
    const auto source = read_file(testing::data_path("templates/" + name + ".jinja"), int64_t{1} << 20);
    REQUIRE(source.ok());
    const auto parsed = Template::parse(*source, name);
    REQUIRE(parsed.ok());
    Json variables = each.at("variables");
    variables["messages"] = each.at("messages");
    variables["add_generation_prompt"] = each.at("add_generation_prompt");
    variables["tools"] = nullptr;
    variables["documents"] = nullptr;
    const auto text = (*parsed)->render(variables, std::nullopt);
    INFO(name << (text.ok() ? "" : ": " + testing::error_of(text.status())));
    REQUIRE(text.ok());
    CHECK(*text == each.at("text").get<std::string>());
  }
}

TEST_CASE("White space around tags is Jinja's with both trims on") {
  CHECK(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n").value() == "a\nb\nc");
  CHECK(render("a {{- ' b ' -}} c").value() == "a b c");
  CHECK(render("{# note #}\nx").value() == "x");
  CHECK(render("x {%+ if true %}y{% endif %}").value() == "x y");
  CHECK(render("{% raw %}{{ x }}{% endraw %}").value() == "{{ x }}");
}

TEST_CASE("Scopes slices and operators are Python's") {
  CHECK(render("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}").value() == "1");
  CHECK(render("{% set n = namespace(x=1) %}{% for i in [1] %}{% set n.x = 2 %}{% endfor %}{{ n.x }}")
            .value() == "2");
  CHECK(render("{{ 'a數b'[::-1] }}{{ 'a數b'|length }}{{ [1, 2, 3][-2:] }}").value() == "b數a3[2, 3]");
  CHECK(render("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1 ~ none }}").value() == "-4 2 3.5 1None");
  CHECK(render("{% macro m(a, b='z') %}{{ a }}{{ b }}{% endmacro %}{{ m('x') }}{{ m(b=1, a=2) }}").value() ==
        "xz21");
  CHECK(render("{{ {'a': [1, true, none, 'é']}|tojson }}").value() == "{\"a\": [1, true, null, \"é\"]}");
}

TEST_CASE("What is not supported is refused with its line") {
  CHECK(error("\n{{ 'x' + none }}").find("t.jinja: line 2, column 8") != std::string::npos);
  CHECK(error("{{ x.y }}").find("'x' is undefined") != std::string::npos);
  CHECK(error("{{ 'x'|wordwrap }}").find("'wordwrap' is not supported") != std::string::npos);
  CHECK(error("\n\n{% include 'x' %}").find("line 3, column 1: 'include' is not supported") !=
        std::string::npos);
  CHECK(error("{{ raise_exception('no') }}").find("refuses these messages: no") != std::string::npos);
  CHECK(error("{{ strftime_now('%Y') }}").find("today's date") != std::string::npos);
  CHECK(error("{% if true %}").find("not closed with endif") != std::string::npos);
  CHECK(error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("too deeply") != std::string::npos);
}

}  // namespace accord::text::jinja
