// gsm8k: 1 if the answer equals the label, else 0, within the last 300 characters. A number is an optional
// '-' and digits, dots and commas.
//   strict:   the number after the last "#### ", commas removed;
//   flexible: the last number other than ".", as it stands (a final full stop belongs to it).
#include "reward/scorers.hpp"
#include "reward/text.hpp"

namespace accord::reward {
namespace {

using std::string_view;

constexpr size_t kWindow = 300;

bool is_number_char(char c) { return (c >= '0' && c <= '9') || c == '.' || c == ','; }

// Bytes of the number at `at`; 0: none there.
size_t number_length(string_view text, size_t at) {
  size_t end = at + (at < text.size() && text[at] == '-' ? 1 : 0);
  const size_t first = end;
  while (end < text.size() && is_number_char(text[end])) {
    ++end;
  }
  return end == first ? 0 : end - at;
}

std::optional<std::string> strict_answer(string_view text) {
  constexpr string_view kMark = "#### ";
  for (size_t found = text.rfind(kMark); found != string_view::npos;
       found = found == 0 ? string_view::npos : text.rfind(kMark, found - 1)) {
    const size_t begin = found + kMark.size();
    if (const size_t length = number_length(text, begin); length > 0) {
      std::string number(text.substr(begin, length));
      replace_all(number, ",", "");
      return number;
    }
  }
  return std::nullopt;
}

std::optional<std::string> flexible_answer(string_view text) {
  std::optional<string_view> answer;
  for (size_t at = 0; at < text.size();) {
    const size_t length = number_length(text, at);
    if (length == 0) {
      ++at;
      continue;
    }
    const string_view number = text.substr(at, length);
    if (!answer || number != ".") {
      answer = number;
    }
    at += length;
  }
  return answer ? std::optional<std::string>(*answer) : std::nullopt;
}

class Gsm8k : public Scorer {
 public:
  using Extract = std::optional<std::string> (*)(string_view);
  explicit Gsm8k(Extract extract) : extract_(extract) {}

  Score score(string_view response, string_view label) const override {
    std::optional<std::string> pred = extract_(last_characters(response, kWindow));
    const bool correct = pred && *pred == label;
    return {correct ? 1.0 : 0.0, std::move(pred)};
  }

 private:
  Extract extract_;
};

}  // namespace

std::unique_ptr<Scorer> make_gsm8k() { return std::make_unique<Gsm8k>(strict_answer); }
std::unique_ptr<Scorer> make_gsm8k_flexible() { return std::make_unique<Gsm8k>(flexible_answer); }

}  // namespace accord::reward
