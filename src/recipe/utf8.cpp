#include "recipe/utf8.hpp"

#include <cstdint>

namespace accord::recipe {

size_t find_invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  size_t i = 0;
  while (i < text.size()) {
    const uint8_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    if (lead < 0xC2 || lead > 0xF4) {
      return i;
    }
    // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (byte(i + 1) < low || byte(i + 1) > high) {
      return i;
    }
    for (size_t j = 2; j < length; ++j) {
      if ((byte(i + j) & 0xC0) != 0x80) {
        return i;
      }
    }
    i += length;
  }
  return std::string_view::npos;
}

}  // namespace accord::recipe
