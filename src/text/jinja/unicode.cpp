#include "text/jinja/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

namespace accord::text::jinja {
namespace {

// Unicode's SpecialCasing.txt: upper case of more than one character.
constexpr std::array<std::pair<uint32_t, uint32_t>, 27> kLongUpper = {{
    {0xDF, 0xDF},     {0x149, 0x149},   {0x1F0, 0x1F0},   {0x390, 0x390},   {0x3B0, 0x3B0},
    {0x587, 0x587},   {0x1E96, 0x1E9A}, {0x1F50, 0x1F50}, {0x1F52, 0x1F52}, {0x1F54, 0x1F54},
    {0x1F56, 0x1F56}, {0x1F80, 0x1FAF}, {0x1FB2, 0x1FB4}, {0x1FB6, 0x1FB7}, {0x1FBC, 0x1FBC},
    {0x1FC2, 0x1FC4}, {0x1FC6, 0x1FC7}, {0x1FCC, 0x1FCC}, {0x1FD2, 0x1FD3}, {0x1FD6, 0x1FD7},
    {0x1FE2, 0x1FE4}, {0x1FE6, 0x1FE7}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FF7}, {0x1FFC, 0x1FFC},
    {0xFB00, 0xFB06}, {0xFB13, 0xFB17},
}};
constexpr uint32_t kCapitalSigma = 0x3A3;
constexpr uint32_t kCapitalDottedI = 0x130;

}  // namespace

bool is_printable(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code_point == ' ';
    default:
      return true;
  }
}

std::optional<uint32_t> lower_case(uint32_t code_point) {
  if (code_point == kCapitalSigma || code_point == kCapitalDottedI) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

std::optional<uint32_t> upper_case(uint32_t code_point) {
  const bool is_long = std::any_of(kLongUpper.begin(), kLongUpper.end(), [&](const auto& range) {
    return range.first <= code_point && code_point <= range.second;
  });
  if (is_long) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point)));
}

}  // namespace accord::text::jinja
