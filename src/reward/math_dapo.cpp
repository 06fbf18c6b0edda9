// math_dapo: the reward of the DAPO recipe (Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning
// System at Scale"), with the rules of verl's scorer of that name. Of the last 300 characters:
//   pred  = normalize(text after the last "Answer:", to the end of its line); "[INVALID]" when there is none;
//   then, without an answer, normalize(last box of the last 100 characters);
//   score = +1 if pred equals normalize(label), else -1.
// math_dapo_integer: as slime has it. End-of-text marks are removed too, the label becomes a whole number,
// and boxes are not looked at.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "reward/math_normalize.hpp"
#include "reward/scorers.hpp"
#include "reward/text.hpp"

namespace accord::reward {
namespace {

using std::string_view;

constexpr size_t kWindow = 300;
constexpr size_t kBoxWindow = 100;
constexpr string_view kInvalid = "[INVALID]";
constexpr std::array<string_view, 2> kEndMarks = {"<|im_end|>", "<|endoftext|>"};

// Bytes of "answer" at `at`, in any case; 0 when it is not there. U+017F is an s in another case.
size_t match_answer_word(string_view text, size_t at) {
  size_t i = at;
  for (const char expected : string_view("answer")) {
    if (expected == 's' && text.substr(i, 2) == "\u017F") {
      i += 2;
    } else if (i < text.size() && (text[i] | 0x20) == expected) {
      ++i;
    } else {
      return 0;
    }
  }
  return i - at;
}

size_t skip_space(string_view text, size_t at) {
  while (at < text.size()) {
    const size_t length = character_length(text, at);
    if (!is_space(text.substr(at, length))) {
      break;
    }
    at += length;
  }
  return at;
}

// The last match of answer <space>* : <space>* (<not a line end>+), as a leftmost, greedy, backtracking
// search over the text finds them: the answer starts at the first character that is not space, or, where
// nothing but space follows, at the last of it that is not a line end.
string_view last_answer(string_view text) {
  string_view answer = kInvalid;
  size_t at = 0;
  while (at < text.size()) {
    const size_t word = match_answer_word(text, at);
    const size_t colon = skip_space(text, at + word);
    if (word == 0 || colon >= text.size() || text[colon] != ':') {
      ++at;
      continue;
    }
    const size_t first = skip_space(text, colon + 1);
    size_t begin = first;
    if (first == text.size()) {
      string_view space = text.substr(colon + 1);
      while (!space.empty() && space.back() == '\n') {
        space.remove_suffix(1);
      }
      begin = colon + 1 + space.size() - last_characters(space, 1).size();
      if (space.empty()) {
        ++at;
        continue;
      }
    }
    const size_t end = std::min(text.find('\n', begin), text.size());
    answer = text.substr(begin, end - begin);
    at = end;
  }
  return answer;
}

class MathDapo : public Scorer {
 public:
  Score score(string_view response, string_view label) const override {
    const string_view window = last_characters(response, kWindow);
    std::string pred = normalize_math(last_answer(window));
    if (pred == kInvalid) {
      if (const auto boxed = last_boxed(last_characters(window, kBoxWindow))) {
        pred = normalize_math(*boxed);
      }
    }
    const bool correct = pred == normalize_math(label);
    return {correct ? 1.0 : -1.0, std::move(pred)};
  }
};

// int(float(text)) as decimal digits; nothing when the text is no finite number. '_' may stand between
// digits.
std::optional<std::string> whole_number(string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit_at = [&](size_t j) { return j < text.size() && text[j] >= '0' && text[j] <= '9'; };
    if (text[i] == '_' && i > 0 && digit_at(i - 1) && digit_at(i + 1)) {
      continue;
    }
    digits += text[i];
  }
  string_view number = digits;
  if (number.starts_with('+') && number.size() > 1 && number[1] != '-') {
    number.remove_prefix(1);
  }
  double value = 0.0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return fmt::format("{:.0f}", std::trunc(value) + 0.0);  // + 0.0: -0.5 gives 0, not -0
}

class MathDapoInteger : public Scorer {
 public:
  Status check_label(string_view label) const override {
    if (!whole_number(normalize_math(label, kEndMarks))) {
      return data_error("label '{}' is not a number (math_dapo_integer needs one; math_dapo does not)",
                        label);
    }
    return absl::OkStatus();
  }

  Score score(string_view response, string_view label) const override {
    std::string pred = normalize_math(last_answer(last_characters(response, kWindow)), kEndMarks);
    const auto expected = whole_number(normalize_math(label, kEndMarks));
    if (!expected) {
      return {std::numeric_limits<double>::quiet_NaN(), std::move(pred)};
    }
    const bool correct = pred == *expected;
    return {correct ? 1.0 : -1.0, std::move(pred)};
  }
};

}  // namespace

std::unique_ptr<Scorer> make_math_dapo() { return std::make_unique<MathDapo>(); }
std::unique_ptr<Scorer> make_math_dapo_integer() { return std::make_unique<MathDapoInteger>(); }

}  // namespace accord::reward
