#include "text/byte_level.hpp"

#include <array>

#include "text/utf8.hpp"

namespace accord::text {
namespace {

constexpr uint32_t kFirstShifted = 256;  // bytes without a printable Latin-1 character continue from here
constexpr uint32_t kNumShifted = 68;

constexpr bool is_printable(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<uint32_t, 256> chars{};
  std::array<int16_t, kFirstShifted + kNumShifted> bytes{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  uint32_t shifted = kFirstShifted;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    alphabet.chars[byte] = is_printable(byte) ? byte : shifted++;
    alphabet.bytes[alphabet.chars[byte]] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

uint32_t char_of_byte(uint8_t byte) { return kAlphabet.chars[byte]; }

std::optional<std::string> spelled_bytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Step step = next_utf8(token, i);
    if (!step.valid || step.code_point >= kAlphabet.bytes.size() || kAlphabet.bytes[step.code_point] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kAlphabet.bytes[step.code_point]);
    i += step.length;
  }
  return bytes;
}

}  // namespace accord::text
