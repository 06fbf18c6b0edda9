#pragma once
// Template text -> tokens, with the treatment of white space that chat templates are written for: trim_blocks
// and lstrip_blocks are on, one newline at the end of the template is dropped.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "text/jinja/place.hpp"

namespace accord::text::jinja {

struct Token {
  enum class Type : uint8_t {
    kData,  // text between the tags
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // text: decoded
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Type type = Type::kEnd;
  std::string text;
  Place place;
  int64_t integer = 0;
  double real = 0.0;
};

// Errors are "line N, column M: ..." data errors. The last token is kEnd.
StatusOr<std::vector<Token>> tokenize(std::string_view source);

// White space as Python's str.strip() knows it.
bool is_space(uint32_t code_point);
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);

}  // namespace accord::text::jinja
