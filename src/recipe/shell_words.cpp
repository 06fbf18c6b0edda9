#include "recipe/shell_words.hpp"

#include <algorithm>
#include <utility>

#include "recipe/node.hpp"

namespace accord::recipe {
namespace {

class Splitter {
 public:
  Splitter(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  StatusOr<std::vector<ShellWord>> split() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n' || c == ' ' || c == '\t' || c == '\r' || c == ';') {
        end_word();
        line_ += c == '\n' ? 1 : 0;
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
        ++at_;
      } else if (c == ')') {
        end_word();
        ++at_;
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
      words_.push_back(std::exchange(word_, {}));
      open_ = false;
    }
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
    if (word_.text.empty()) {
      word_.line = line_;
    }
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      char c = text_[at_];
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
