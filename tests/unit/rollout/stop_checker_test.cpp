#include "rollout/stop_checker.hpp"

#include "support/catch.hpp"

using namespace accord::rollout;

namespace {

// Tokens are bytes; bytes that are not whole characters read as U+FFFD, as tokenizers show them.
std::string decode(std::span<const int32_t> ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += static_cast<char>(id);
  std::string text;
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<uint8_t>(bytes[i]);
    const size_t length = lead < 0x80    ? 1
                          : lead >= 0xF8 ? 0
                          : lead >= 0xF0 ? 4
                          : lead >= 0xE0 ? 3
                          : lead >= 0xC0 ? 2
                                         : 0;
    if (length == 0 || i + length > bytes.size()) {
      text += "\xEF\xBF\xBD";
      i = length == 0 ? i + 1 : bytes.size();
    } else {
      text += bytes.substr(i, length);
      i += length;
    }
  }
  return text;
}

std::vector<int32_t> bytes_of(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

}  // namespace

TEST_CASE("new text arrives in whole characters and adds up to the whole") {
  const std::string text = "caf\xC3\xA9 \xF0\x9F\x98\x80 ok";
  const auto ids = bytes_of(text);
  StopState state;
  std::string got;
  for (size_t n = 1; n <= ids.size(); ++n) {
    const std::string piece = new_text(decode, std::span(ids).first(n), state);
    CHECK(piece.find("\xEF\xBF\xBD") == std::string::npos);
    got += piece;
  }
  CHECK(got == text);
}

TEST_CASE("bytes that never become a character do not hold the text back for good") {
  const auto ids = bytes_of("a\xFF\xFF\xFF\xFF\xFF\xFFz");
  StopState state;
  std::string got;
  for (size_t n = 1; n <= ids.size(); ++n) got += new_text(decode, std::span(ids).first(n), state);
  CHECK(got == decode(ids));
}

TEST_CASE("a stop string is found across tokens and not before it is complete") {
  const auto ids = bytes_of("one\nHuman: two");
  const std::vector<std::string> stops = {"zzz", "\nHuman:"};
  StopState state;
  for (size_t n = 1; n <= ids.size(); ++n) {
    const bool hit = hits_stop_string(decode, std::span(ids).first(n), stops, state);
    CAPTURE(n);
    CHECK(hit == (n == 10));
    if (hit) break;
  }
}

TEST_CASE("a stop string of one character works") {
  const auto ids = bytes_of("ab.");
  StopState state;
  CHECK(!hits_stop_string(decode, std::span(ids).first(1), {"."}, state));
  CHECK(!hits_stop_string(decode, std::span(ids).first(2), {"."}, state));
  CHECK(hits_stop_string(decode, std::span(ids).first(3), {"."}, state));
}
