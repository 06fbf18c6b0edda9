#include "text/jinja/lexer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "text/utf8.hpp"

namespace accord::text::jinja {
namespace {

using Type = Token::Type;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

std::string unify_newlines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  StatusOr<std::vector<Token>> run() {
    while (at_ < text_.size()) {
      const size_t tag = find_tag(at_);
      const size_t sign_at = tag + 2;
      const char sign = sign_at < text_.size() ? text_[sign_at] : '\0';
      if (tag == text_.size()) {
        add_data(std::string_view(text_).substr(at_));
        move_to(tag);
        break;
      }
      const char kind = text_[tag + 1];
      add_data(before_tag(std::string_view(text_).substr(at_, tag - at_), kind, sign));
      move_to(tag);
      const Place place = place_;
      move_to(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (kind == '#') {
        ACCORD_RETURN_IF_ERROR(skip_comment());
      } else if (kind == '%' && begins_raw()) {
        ACCORD_RETURN_IF_ERROR(read_raw());
      } else {
        ACCORD_RETURN_IF_ERROR(read_tag(kind, place));
      }
    }
    add(Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  Status fail(std::string_view what) const { return data_error("{}: {}", describe(place_), what); }

  void add(Type type, std::string text) { tokens_.push_back(Token{type, std::move(text), place_, 0, 0.0}); }
  void add_data(std::string_view data) {
    if (!data.empty()) {
      add(Type::kData, std::string(data));
    }
  }

  void move_to(size_t position) {
    for (; at_ < position; ++at_) {
      if (text_[at_] == '\n') {
        place_ = {place_.line + 1, 1};
      } else if ((text_[at_] & 0xC0) != 0x80) {
        ++place_.column;
      }
    }
  }

  size_t find_tag(size_t from) const {
    for (size_t i = from; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) {
        return i;
      }
    }
    return text_.size();
  }

  bool starts(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }

  // The text before a tag: `-` strips it, and a tag alone on its line (not a print) takes its indentation
  // away.
  std::string_view before_tag(std::string_view data, char kind, char sign) const {
    if (sign == '-') {
      return strip_right(data);
    }
    if (sign == '+' || kind == '{') {
      return data;
    }
    const size_t newline = data.rfind('\n');
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    const bool at_line_start = start > 0 || line_starting_;
    return at_line_start && strip_left(data.substr(start)).empty() ? data.substr(0, start) : data;
  }

  // Behind a tag: `-` strips what follows; a newline right behind a block or comment is dropped.
  void after_tag(char sign, bool trims_newline) {
    size_t end = at_;
    if (sign == '-') {
      end = text_.size() - strip_left(std::string_view(text_).substr(at_)).size();
    } else if (sign != '+' && trims_newline && starts("\n")) {
      end = at_ + 1;
    }
    line_starting_ = end > at_ && text_[end - 1] == '\n';
    move_to(end);
  }

  Status skip_comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) {
      return fail("a comment is not closed with #}");
    }
    const char before = end > at_ ? text_[end - 1] : '\0';
    move_to(end + 2);
    after_tag(before, /*trims_newline=*/true);
    return absl::OkStatus();
  }

  // Whether the tag at `from` is `name` and nothing else; `end` is behind it.
  std::optional<char> bare_tag(size_t from, std::string_view name, size_t& end) const {
    std::string_view rest = strip_left(std::string_view(text_).substr(from));
    if (!rest.starts_with(name)) {
      return std::nullopt;
    }
    rest = strip_left(rest.substr(name.size()));
    char sign = '\0';
    if (rest.starts_with('-') || rest.starts_with('+')) {
      sign = rest.front();
      rest.remove_prefix(1);
    }
    if (!rest.starts_with("%}")) {
      return std::nullopt;
    }
    end = text_.size() - rest.size() + 2;
    return sign;
  }

  bool begins_raw() const {
    size_t end = 0;
    return bare_tag(at_, "raw", end).has_value();
  }

  Status read_raw() {
    size_t end = 0;
    const char sign = *bare_tag(at_, "raw", end);
    move_to(end);
    after_tag(sign, /*trims_newline=*/false);
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 2)) {
      char open = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      open = open == '-' || open == '+' ? open : '\0';
      if (const auto close = bare_tag(tag + 2 + (open == '\0' ? 0 : 1), "endraw", end)) {
        add_data(before_tag(std::string_view(text_).substr(at_, tag - at_), '%', open));
        move_to(end);
        after_tag(*close, /*trims_newline=*/true);
        return absl::OkStatus();
      }
    }
    return fail("raw is not closed with endraw");
  }

  Status read_tag(char kind, const Place& place) {
    const bool is_print = kind == '{';
    const std::string_view close = is_print ? "}}" : "%}";
    add(is_print ? Type::kPrintBegin : Type::kBlockBegin, "");
    tokens_.back().place = place;
    std::string open;  // brackets
    while (at_ < text_.size()) {
      move_to(text_.size() - strip_left(std::string_view(text_).substr(at_)).size());
      if (open.empty()) {
        const bool has_sign = starts("-") || (!is_print && starts("+"));
        if (std::string_view(text_).substr(at_ + (has_sign ? 1 : 0)).starts_with(close)) {
          const char sign = has_sign ? text_[at_] : '\0';
          add(is_print ? Type::kPrintEnd : Type::kBlockEnd, "");
          move_to(at_ + close.size() + (has_sign ? 1 : 0));
          after_tag(sign, /*trims_newline=*/!is_print);
          return absl::OkStatus();
        }
      }
      ACCORD_RETURN_IF_ERROR(read_token(open));
    }
    return fail(is_print ? "a print is not closed with }}" : "a block is not closed with %}");
  }

  Status read_token(std::string& open) {
    if (at_ >= text_.size()) {
      return absl::OkStatus();
    }
    const char c = text_[at_];
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < text_.size() && is_name(text_[end])) {
        ++end;
      }
      add(Type::kName, text_.substr(at_, end - at_));
      move_to(end);
      return absl::OkStatus();
    }
    if (is_digit(c)) {
      return read_number();
    }
    if (c == '"' || c == '\'') {
      return read_string(c);
    }
    return read_operator(open);
  }

  Status read_operator(std::string& open) {
    constexpr std::array<std::string_view, 27> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};
    for (const std::string_view each : kOperators) {
      if (!starts(each)) {
        continue;
      }
      const char c = each.front();
      if (c == '(' || c == '[' || c == '{') {
        open += c == '(' ? ')' : c == '[' ? ']' : '}';
        if (open.size() > 100) {
          return fail("brackets are nested more than 100 deep");
        }
      } else if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) {
          return fail(fmt::format("'{}' closes no bracket", c));
        }
        open.pop_back();
      }
      add(Type::kOperator, std::string(each));
      move_to(at_ + each.size());
      return absl::OkStatus();
    }
    std::string shown;
    append_lossy(shown, std::string_view(text_).substr(at_, next_utf8(text_, at_).length));
    return fail(fmt::format("unexpected character '{}'", shown));
  }

  size_t skip_digits(size_t from) const {
    while (from < text_.size() && (is_digit(text_[from]) || (text_[from] == '_' && from + 1 < text_.size() &&
                                                             is_digit(text_[from + 1])))) {
      ++from;
    }
    return from;
  }

  Status read_number() {
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    size_t end = skip_digits(at_);
    bool is_float = false;
    if (!after_dot && end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      end = skip_digits(end + 1);
      is_float = true;
    }
    if (!after_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t exponent = end + 1;
      exponent += exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-') ? 1 : 0;
      if (exponent < text_.size() && is_digit(text_[exponent])) {
        end = skip_digits(exponent);
        is_float = true;
      }
    }
    if (end < text_.size() && is_name_start(text_[end])) {
      return fail("a number is followed by a letter; only decimal numbers are supported");
    }
    std::string digits = text_.substr(at_, end - at_);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    add(is_float ? Type::kFloat : Type::kInteger, "");
    Token& token = tokens_.back();
    const char* last = digits.data() + digits.size();
    const auto result = is_float ? std::from_chars(digits.data(), last, token.real)
                                 : std::from_chars(digits.data(), last, token.integer);
    if (result.ec != std::errc() || result.ptr != last) {
      return fail(fmt::format("the number {} does not fit 64 bits", digits.substr(0, 40)));
    }
    move_to(end);
    return absl::OkStatus();
  }

  Status read_string(char quote) {
    std::string decoded;
    for (size_t i = at_ + 1; i < text_.size();) {
      if (text_[i] == quote) {
        add(Type::kString, std::move(decoded));
        move_to(i + 1);
        return absl::OkStatus();
      }
      if (text_[i] != '\\' || i + 1 == text_.size()) {
        decoded += text_[i++];
        continue;
      }
      ACCORD_RETURN_IF_ERROR(read_escape(i, decoded));
    }
    return fail("a text is not closed");
  }

  // At a backslash; leaves `i` behind the escape.
  Status read_escape(size_t& i, std::string& decoded) const {
    const char c = text_[i + 1];
    constexpr std::string_view kFrom = "ntrabfv\\'\"";
    constexpr std::string_view kTo = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      decoded += kTo[known];
      i += 2;
    } else if (c == '\n') {
      i += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t value = 0;
      const char* first = text_.data() + i + 2;
      const size_t available = std::min(count, text_.size() - i - 2);
      const auto result = std::from_chars(first, first + available, value, 16);
      if (available != count || result.ec != std::errc() || result.ptr != first + count || value > 0x10FFFF ||
          (value >= 0xD800 && value < 0xE000)) {
        return fail(fmt::format("\\{} needs {} hexadecimal digits of a character", c, count));
      }
      append_utf8(decoded, value);
      i += 2 + count;
    } else if ((c >= '0' && c <= '7') || c == 'N') {
      return fail(fmt::format("the escape \\{} is not supported", c));
    } else {
      decoded += '\\';  // as it stands
      ++i;
    }
    return absl::OkStatus();
  }

  std::string text_;
  size_t at_ = 0;
  Place place_;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text, 0);
    if (!step.valid || !is_space(step.code_point)) {
      break;
    }
    text.remove_prefix(step.length);
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (text[start] & 0xC0) == 0x80) {
      --start;
    }
    const Utf8Step step = next_utf8(text, start);
    if (!step.valid || !is_space(step.code_point)) {
      break;
    }
    text.remove_suffix(text.size() - start);
  }
  return text;
}

StatusOr<std::vector<Token>> tokenize(std::string_view source) {
  if (source.size() > (size_t{1} << 20)) {
    return data_error("the template has {} bytes; the limit is 1 MiB", source.size());
  }
  if (const size_t bad = find_invalid_utf8(source); bad != std::string_view::npos) {
    return data_error("the template is not UTF-8 (byte {})", bad);
  }
  return Lexer(unify_newlines(source)).run();
}

}  // namespace accord::text::jinja
