#pragma once
// Stop strings over a growing response. Text is decoded a few tokens at a time: the run that gave the last
// new text is decoded again together with the newest tokens, so that tokens that only together make a
// character or a space come out right.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rollout/engine.hpp"

namespace accord::rollout {

// One sample's progress.
struct StopState {
  size_t prefix_begin = 0;  // response tokens [prefix_begin, read_end) gave the last new text
  size_t read_end = 0;
  std::string tail;  // the last bytes of the text, one fewer than the longest stop string has
};

// The text that `response` adds past what `state` has read; empty while a character is incomplete.
std::string new_text(const Detokenize& detokenize, std::span<const int32_t> response, StopState& state);

// True once the response's text contains one of `stop_strings`. Call it after each new token.
bool hits_stop_string(const Detokenize& detokenize, std::span<const int32_t> response,
                      const std::vector<std::string>& stop_strings, StopState& state);

}  // namespace accord::rollout
