#include "cli/command.hpp"

namespace accord::cli {
namespace {

CLI::Validator number_check(const char* name, const char* rule, bool (*accepts)(double)) {
  return {[rule, accepts](std::string& text) {
            double value = 0.0;
            const bool good = CLI::detail::lexical_cast(text, value) && accepts(value);
            return good ? std::string() : fmt::format("must be {}, is '{}'", rule, text);
          },
          name};
}

}  // namespace

CLI::Validator positive_number() {
  return number_check("POSITIVE", "above 0", [](double value) { return value > 0.0; });
}

CLI::Validator nonnegative_number() {
  return number_check("NONNEGATIVE", "0 or more", [](double value) { return value >= 0.0; });
}

}  // namespace accord::cli
