#pragma once
// Chat templates in Jinja, rendered as Hugging Face's apply_chat_template renders them: the part of the
// language that published templates use. Anything else is an error that names it, its line and column; a
// template can neither read files nor run for long.
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "base/strict_json.hpp"

namespace accord::text::jinja {

class Template {
 public:
  // `origin` is put before errors: "origin: line 7, column 12: ...". A template that cannot be parsed is a
  // recipe error.
  static StatusOr<std::unique_ptr<Template>> parse(std::string_view source, std::string origin);
  ~Template();

  // `variables` is an object. `date` is what strftime_now sees; without it a call of strftime_now is an
  // error. Data errors: what the template refuses (raise_exception), uses of undefined values, what is not
  // supported.
  StatusOr<std::string> render(const Json& variables, const std::optional<std::tm>& date) const;

 private:
  struct Parsed;
  Template(std::unique_ptr<Parsed> parsed, std::string origin);

  std::unique_ptr<Parsed> parsed_;
  std::string origin_;
};

}  // namespace accord::text::jinja
