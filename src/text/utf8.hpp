#pragma once
// UTF-8 by the Unicode Standard's table 3-7 (well-formed byte sequences).
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace accord::text {

// One step through text that may be malformed. An invalid step spans a "maximal subpart": the bytes that
// conforming decoders replace by one U+FFFD.
struct Utf8Step {
  uint32_t code_point = 0;  // U+FFFD where invalid
  uint8_t length = 0;       // bytes, at least 1
  bool valid = false;
  bool truncated = false;  // invalid only because the text ends here
};

Utf8Step next_utf8(std::string_view text, size_t position);  // position < text.size()

size_t find_invalid_utf8(std::string_view text);  // offset of the first malformed byte; npos: none
void append_utf8(std::string& out, uint32_t code_point);
void append_lossy(std::string& out, std::string_view bytes);  // malformed parts become U+FFFD
size_t truncated_suffix(std::string_view bytes);              // trailing bytes that more bytes may complete

}  // namespace accord::text
