#pragma once
// Text as sequences of characters (Unicode code points), for rules that count them. A byte that is not part
// of well-formed UTF-8 counts as one character.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accord::reward {

// The last `count` characters.
std::string_view last_characters(std::string_view text, size_t count);

// Bytes of the character that starts at `at`; 0 at the end.
size_t character_length(std::string_view text, size_t at);

// White space and digits as Unicode has them (digits: decimal ones and those such as superscripts).
bool is_space(std::string_view character);
bool is_digit(std::string_view character);

std::string_view strip(std::string_view text);  // without surrounding white space
void replace_all(std::string& text, std::string_view from, std::string_view to);

// What the last "\boxed{" encloses, braces matched; none when there is none or it is never closed.
std::optional<std::string_view> last_boxed(std::string_view text);

}  // namespace accord::reward
