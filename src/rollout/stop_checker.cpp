#include "rollout/stop_checker.hpp"

#include <algorithm>

namespace accord::rollout {
namespace {

// A UTF-8 character has at most four bytes, so at most four tokens share one.
constexpr size_t kMaxTokensPerCharacter = 4;

// Length of an incomplete UTF-8 character at the end of the text, as raw bytes or as U+FFFD; 0 if none.
size_t incomplete_tail(const std::string& text) {
  if (text.ends_with("\xEF\xBF\xBD")) {
    return 3;
  }
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if (byte >= 0xC0) {
      const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
      return back < length ? back : 0;
    }
    if (byte < 0x80) {
      return 0;
    }
  }
  return 0;
}

}  // namespace

std::string new_text(const Detokenize& detokenize, std::span<const int32_t> response, StopState& state) {
  const auto window = response.subspan(state.prefix_begin);
  const std::string before = detokenize(window.first(state.read_end - state.prefix_begin));
  const std::string after = detokenize(window);
  if (incomplete_tail(after) > 0 && response.size() - state.read_end < kMaxTokensPerCharacter) {
    return {};
  }
  state.prefix_begin = state.read_end;
  state.read_end = response.size();
  return after.size() > before.size() ? after.substr(before.size()) : std::string();
}

bool hits_stop_string(const Detokenize& detokenize, std::span<const int32_t> response,
                      const std::vector<std::string>& stop_strings, StopState& state) {
  state.tail += new_text(detokenize, response, state);
  size_t longest = 0;
  for (const std::string& stop : stop_strings) {
    if (state.tail.find(stop) != std::string::npos) {
      return true;
    }
    longest = std::max(longest, stop.size());
  }
  if (state.tail.size() >= longest) {
    state.tail.erase(0, state.tail.size() - (longest - 1));
  }
  return false;
}

}  // namespace accord::rollout
