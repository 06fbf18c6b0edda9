#include "recipe/shell_words.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "recipe/node.hpp"

namespace accord::recipe {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

class Splitter {
 public:
  Splitter(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  StatusOr<std::vector<ShellWord>> split() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n' || c == ' ' || c == '\t' || c == '\r' || c == ';') {
        end_word();
        line_ += c == '\n' ? 1 : 0;
        gap_ = c == ';' ? Gap::kCommand : c == '\n' && !in_array_ ? std::max(gap_, Gap::kLine) : gap_;
        ++at_;
      } else if (c == '#' && !open_) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '\'' || c == '"') {
        ACCORD_RETURN_IF_ERROR(quoted(c));
      } else if (c == '\\') {
        escaped();
      } else if (c == '(' && open_ && word_.text.ends_with('=')) {
        word_ = {};
        open_ = false;
        in_array_ = true;
        gap_ = Gap::kCommand;
        ++at_;
      } else if (c == ')') {
        end_word();
        in_array_ = false;
        gap_ = Gap::kCommand;
        ++at_;
      } else if (c == '$' && substitute(false)) {
      } else {
        add(c);
        word_.expands = word_.expands || c == '$' || c == '`';
        ++at_;
      }
    }
    end_word();
    return std::move(words_);
  }

 private:
  void add(char c) {
    if (!open_) {
      open_ = true;
      word_.line = line_;
    }
    word_.text += c;
  }

  void end_word() {
    if (open_) {
      word_.gap = std::exchange(gap_, Gap::kSpace);
      follow_blocks();
      word_.conditional = blocks_ > 0;
      remember();
      words_.push_back(std::exchange(word_, {}));
      open_ = false;
    }
  }

  void follow_blocks() {
    constexpr std::string_view kBegin[] = {"if", "case", "for", "while", "until"};
    constexpr std::string_view kEnd[] = {"fi", "esac", "done"};
    if (std::find(std::begin(kBegin), std::end(kBegin), word_.text) != std::end(kBegin)) {
      ++blocks_;
    } else if (blocks_ > 0 && std::find(std::begin(kEnd), std::end(kEnd), word_.text) != std::end(kEnd)) {
      --blocks_;
    }
  }

  // What stands before the first =; empty: there is none.
  std::string_view assigned() const {
    const size_t equals = word_.text.find('=');
    return equals == std::string::npos ? std::string_view() : std::string_view(word_.text).substr(0, equals);
  }

  // A variable with one value; any other word that sets it makes it unknown.
  void remember() {
    constexpr std::string_view kSetting[] = {"for", "select", "read", "unset"};
    if (!words_.empty() &&
        std::find(std::begin(kSetting), std::end(kSetting), words_.back().text) != std::end(kSetting)) {
      variables_[word_.text] = std::nullopt;
      return;
    }
    const std::string_view left = assigned();
    const std::string name(left.ends_with('+') ? left.substr(0, left.size() - 1) : left);
    if (!is_name(name)) {
      return;
    }
    std::optional<std::string> value;
    if (!word_.expands && blocks_ == 0 && !left.ends_with('+')) {
      value = word_.text.substr(left.size() + 1);
    }
    if (const auto [place, fresh] = variables_.emplace(name, value); !fresh && place->second != value) {
      place->second.reset();
    }
  }

  // $NAME or ${NAME} at `at_`, where its value is known. False: nothing was taken.
  bool substitute(bool in_quotes) {
    const bool braces = at_ + 1 < text_.size() && text_[at_ + 1] == '{';
    const size_t begin = at_ + (braces ? 2 : 1);
    size_t end = begin;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) != 0 || text_[end] == '_')) {
      ++end;
    }
    if (braces && (end >= text_.size() || text_[end] != '}')) {
      return false;
    }
    const auto found = variables_.find(text_.substr(begin, end - begin));
    if (found == variables_.end() || !found->second) {
      return false;
    }
    const std::string& value = *found->second;
    expanded_ += static_cast<int64_t>(value.size());  // bounded: values double with each line that says so
    const bool splits = !in_quotes && !is_name(assigned());
    if (expanded_ > kMaxRecipeBytes) {
      return false;
    }
    if (splits && value.find_first_of("*?[") != std::string::npos) {
      return false;
    }
    for (const char c : value) {
      if (splits && (c == ' ' || c == '\t' || c == '\n')) {
        end_word();
      } else {
        add(c);
      }
    }
    at_ = end + (braces ? 1 : 0);
    return true;
  }

  // A backslash takes the next character as it is; before a line's end it continues the line.
  void escaped() {
    if (at_ + 1 < text_.size() && text_[at_ + 1] == '\n') {
      ++line_;
      end_word();
    } else if (at_ + 1 < text_.size()) {
      add(text_[at_ + 1]);
    }
    at_ += 2;
  }

  Status quoted(char quote) {
    const int32_t begin = line_;
    open_ = true;
    word_.quoted = true;
    if (word_.text.empty()) {
      word_.line = line_;
    }
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      char c = text_[at_];
      if (quote == '"' && c == '$' && substitute(true)) {
        --at_;
        continue;
      }
      if (quote == '"' && c == '\\' && at_ + 1 < text_.size()) {
        c = text_[++at_];
      } else {
        word_.expands = word_.expands || (quote == '"' && (c == '$' || c == '`'));
      }
      line_ += c == '\n' ? 1 : 0;
      word_.text += c;
    }
    if (at_ >= text_.size()) {
      return recipe_error("{}:{}: a quote that is never closed (close it)", source_, begin);
    }
    ++at_;
    return absl::OkStatus();
  }

  std::string_view text_;
  std::string_view source_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool open_ = false;
  bool in_array_ = false;
  Gap gap_ = Gap::kSpace;                                                     // before the next word
  int64_t expanded_ = 0;                                                      // bytes
  int32_t blocks_ = 0;                                                        // open if, case, for, ...
  std::map<std::string, std::optional<std::string>, std::less<>> variables_;  // nothing: not known
  ShellWord word_;
  std::vector<ShellWord> words_;
};

}  // namespace

StatusOr<std::vector<ShellWord>> split_shell_words(std::string_view text, std::string_view source) {
  if (static_cast<int64_t>(text.size()) > kMaxRecipeBytes) {
    return recipe_error("{}: {} bytes, more than the {} that a file of arguments may have", source,
                        text.size(), kMaxRecipeBytes);
  }
  return Splitter(text, source).split();
}

}  // namespace accord::recipe
