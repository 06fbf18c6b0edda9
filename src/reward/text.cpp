#include "reward/text.hpp"

#include <algorithm>
#include <iterator>

namespace accord::reward {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

// Code points with Numeric_Type Decimal or Digit, Unicode 14.0.0.
constexpr Range kDigits[] = {
    {0x30, 0x39},       {0xB2, 0xB3},       {0xB9, 0xB9},       {0x660, 0x669},     {0x6F0, 0x6F9},
    {0x7C0, 0x7C9},     {0x966, 0x96F},     {0x9E6, 0x9EF},     {0xA66, 0xA6F},     {0xAE6, 0xAEF},
    {0xB66, 0xB6F},     {0xBE6, 0xBEF},     {0xC66, 0xC6F},     {0xCE6, 0xCEF},     {0xD66, 0xD6F},
    {0xDE6, 0xDEF},     {0xE50, 0xE59},     {0xED0, 0xED9},     {0xF20, 0xF29},     {0x1040, 0x1049},
    {0x1090, 0x1099},   {0x1369, 0x1371},   {0x17E0, 0x17E9},   {0x1810, 0x1819},   {0x1946, 0x194F},
    {0x19D0, 0x19DA},   {0x1A80, 0x1A89},   {0x1A90, 0x1A99},   {0x1B50, 0x1B59},   {0x1BB0, 0x1BB9},
    {0x1C40, 0x1C49},   {0x1C50, 0x1C59},   {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},
    {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},   {0xA620, 0xA629},
    {0xA8D0, 0xA8D9},   {0xA900, 0xA909},   {0xA9D0, 0xA9D9},   {0xA9F0, 0xA9F9},   {0xAA50, 0xAA59},
    {0xABF0, 0xABF9},   {0xFF10, 0xFF19},   {0x104A0, 0x104A9}, {0x10A40, 0x10A43}, {0x10D30, 0x10D39},
    {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x11066, 0x1106F}, {0x110F0, 0x110F9}, {0x11136, 0x1113F},
    {0x111D0, 0x111D9}, {0x112F0, 0x112F9}, {0x11450, 0x11459}, {0x114D0, 0x114D9}, {0x11650, 0x11659},
    {0x116C0, 0x116C9}, {0x11730, 0x11739}, {0x118E0, 0x118E9}, {0x11950, 0x11959}, {0x11C50, 0x11C59},
    {0x11D50, 0x11D59}, {0x11DA0, 0x11DA9}, {0x16A60, 0x16A69}, {0x16AC0, 0x16AC9}, {0x16B50, 0x16B59},
    {0x1D7CE, 0x1D7FF}, {0x1E140, 0x1E149}, {0x1E2F0, 0x1E2F9}, {0x1E950, 0x1E959}, {0x1F100, 0x1F10A},
    {0x1FBF0, 0x1FBF9}};

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

size_t length_of_lead(char c) {
  const auto lead = static_cast<uint8_t>(c);
  return lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

// Of a character as character_length cuts it; a stray byte gives a value outside Unicode.
uint32_t code_point(std::string_view character) {
  const auto lead = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) {
    return lead < 0x80 ? lead : 0xFFFFFFFF;
  }
  uint32_t value = lead & (0x7FU >> character.size());
  for (const char c : character.substr(1)) {
    value = value << 6 | (static_cast<uint8_t>(c) & 0x3FU);
  }
  return value;
}

}  // namespace

size_t character_length(std::string_view text, size_t at) {
  if (at >= text.size()) {
    return 0;
  }
  const size_t length = length_of_lead(text[at]);
  if (length == 0 || at + length > text.size() ||
      !std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                   text.begin() + static_cast<std::ptrdiff_t>(at + length), is_continuation)) {
    return 1;
  }
  return length;
}

std::string_view last_characters(std::string_view text, size_t count) {
  size_t begin = text.size();
  for (; count > 0 && begin > 0; --count) {
    size_t start = begin - 1;
    while (start > 0 && begin - start < 4 && is_continuation(text[start])) {
      --start;
    }
    begin = length_of_lead(text[start]) == begin - start ? start : begin - 1;
  }
  return text.substr(begin);
}

bool is_space(std::string_view character) {
  const uint32_t c = code_point(character);
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_digit(std::string_view character) {
  const uint32_t c = code_point(character);
  const auto after = std::upper_bound(std::begin(kDigits), std::end(kDigits), c,
                                      [](uint32_t value, const Range& range) { return value < range.first; });
  return after != std::begin(kDigits) && c <= std::prev(after)->last;
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const size_t length = character_length(text, 0);
    if (!is_space(text.substr(0, length))) {
      break;
    }
    text.remove_prefix(length);
  }
  while (!text.empty()) {
    const std::string_view last = last_characters(text, 1);
    if (!is_space(last)) {
      break;
    }
    text.remove_suffix(last.size());
  }
  return text;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t found = text.find(from);
  if (found == std::string::npos) {
    return;
  }
  std::string out;
  size_t begin = 0;
  for (; found != std::string::npos; found = text.find(from, begin)) {
    out.append(text, begin, found - begin);
    out += to;
    begin = found + from.size();
  }
  out.append(text, begin);
  text = std::move(out);
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  constexpr std::string_view kOpen = "\\boxed{";
  const size_t found = text.rfind(kOpen);
  if (found == std::string_view::npos) {
    return std::nullopt;
  }
  const size_t begin = found + kOpen.size();
  size_t depth = 1;
  for (size_t i = begin; i < text.size(); ++i) {
    if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return text.substr(begin, i - begin);
    }
  }
  return std::nullopt;
}

}  // namespace accord::reward
