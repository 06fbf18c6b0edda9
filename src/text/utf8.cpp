#include "text/utf8.hpp"

#include <algorithm>

namespace accord::text {
namespace {

constexpr uint32_t kReplacement = 0xFFFD;

}  // namespace

Utf8Step next_utf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1, true, false};
  }
  size_t length = 0;
  uint8_t low = 0x80;  // bounds of the second byte; further ones are 80..BF
  uint8_t high = 0xBF;
  uint32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0Fu;
    low = lead == 0xE0 ? 0xA0 : 0x80;   // overlong forms
    high = lead == 0xED ? 0x9F : 0xBF;  // surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07u;
    low = lead == 0xF0 ? 0x90 : 0x80;
    high = lead == 0xF4 ? 0x8F : 0xBF;  // past U+10FFFF
  } else {
    return {kReplacement, 1, false, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (position + i >= text.size()) {
      return {kReplacement, static_cast<uint8_t>(i), false, true};
    }
    if (byte(i) < low || byte(i) > high) {
      return {kReplacement, static_cast<uint8_t>(i), false, false};
    }
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, static_cast<uint8_t>(length), true, false};
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = next_utf8(text, i);
    if (!step.valid) {
      return i;
    }
    i += step.length;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

void append_lossy(std::string& out, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = next_utf8(bytes, i);
    if (step.valid) {
      out.append(bytes, i, step.length);
    } else {
      append_utf8(out, kReplacement);
    }
    i += step.length;
  }
}

size_t truncated_suffix(std::string_view bytes) {
  // A character has at most four bytes, so an incomplete one starts in the last three.
  for (size_t back = std::min<size_t>(3, bytes.size()); back > 0; --back) {
    const Utf8Step step = next_utf8(bytes, bytes.size() - back);
    if (step.truncated && step.length == back) {
      return back;
    }
  }
  return 0;
}

}  // namespace accord::text
