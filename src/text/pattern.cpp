#include "text/pattern.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "text/unicode_newer.hpp"
#include "text/utf8.hpp"

namespace accord::text {
namespace {

// Unicode White_Space, and everything else.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{"
    "3000}";
constexpr size_t kNone = std::string::npos;
constexpr size_t kMaxGroups = 64;

std::string code(uint32_t code_point) { return fmt::format("\\x{{{:X}}}", code_point); }

std::string property_members(std::string_view name, bool is_script) {
  return fmt::format("\\p{{{}{}}}{}", is_script ? "sc:" : "", name, newer_members(name));
}

std::string word_members() {
  return "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" + newer_members("L") + newer_members("M") +
         newer_members("Nd");
}

// What a backslash stands for: one character, or a set of them (`members` of a class, possibly negated).
struct Escape {
  bool is_set = false;
  uint32_t code_point = 0;
  std::string members;
  bool negated = false;
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  StatusOr<std::string> run() {
    while (at_ < in_.size()) {
      ACCORD_RETURN_IF_ERROR(step());
    }
    if (!groups_.empty()) {
      return error("a group is not closed");
    }
    return std::move(out_);
  }

 private:
  Status error(std::string_view what) const {
    return data_error("{} (at byte {} of the pattern '{}')", what, at_, in_);
  }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) {
      return false;
    }
    at_ += text.size();
    return true;
  }
  uint32_t take_char() {
    const Utf8Step step = next_utf8(in_, at_);
    at_ += step.length;
    return step.code_point;
  }
  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
    quantified_ = false;
  }
  void separator(std::string_view text) {
    out_ += text;
    atom_ = kNone;
  }

  Status step() {
    switch (in_[at_]) {
      case '\\':
        return backslash();
      case '[':
        return char_class();
      case '(':
        return open_group();
      case ')':
        return close_group();
      case '*':
      case '+':
      case '?':
      case '{':
        return quantifier();
      case '|':
        ++at_;
        separator("|");
        return absl::OkStatus();
      case '^':
        ++at_;
        separator("(?m:^)");
        return absl::OkStatus();
      case '$':
        ++at_;
        separator("(?m:$)");
        return absl::OkStatus();
      case '.':
        ++at_;
        atom(".");
        return absl::OkStatus();
      default:
        atom(code(take_char()));
        return absl::OkStatus();
    }
  }

  Status backslash() {
    for (const std::string_view anchor : {"\\A", "\\z", "\\Z"}) {
      if (take(anchor)) {
        separator(anchor);
        return absl::OkStatus();
      }
    }
    ACCORD_ASSIGN_OR_RETURN(const Escape escape, parse_escape());
    atom(!escape.is_set ? code(escape.code_point)
                        : fmt::format("[{}{}]", escape.negated ? "^" : "", escape.members));
    return absl::OkStatus();
  }

  StatusOr<Escape> parse_escape() {
    ++at_;  // the backslash
    if (at_ >= in_.size()) {
      return error("a backslash ends the pattern");
    }
    const auto single = [](uint32_t c) { return Escape{false, c, "", false}; };
    const auto set = [](std::string members, bool negated) {
      return Escape{true, 0, std::move(members), negated};
    };
    const size_t start = at_;
    const uint32_t c = take_char();
    switch (c) {
      case 'n':
        return single('\n');
      case 'r':
        return single('\r');
      case 't':
        return single('\t');
      case 'f':
        return single('\f');
      case 'v':
        return single('\v');
      case 'a':
        return single('\a');
      case 'e':
        return single(0x1B);
      case 's':
      case 'S':
        return set(std::string(kSpace), c == 'S');
      case 'd':
      case 'D':
        return set(property_members("Nd", false), c == 'D');
      case 'w':
      case 'W':
        return set(word_members(), c == 'W');
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'x':
      case 'u':
        return hex_code(c == 'u');
      default:
        if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) {
          at_ = start;
          return error(fmt::format("the escape '\\{}' is not supported", static_cast<char>(c)));
        }
        return single(c);
    }
  }

  StatusOr<Escape> property(bool negated) {
    const size_t close = in_.find('}', at_);
    if (!next_is("{") || close == kNone) {
      return error("\\p needs a property in braces");
    }
    std::string_view name = in_.substr(at_ + 1, close - at_ - 1);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    static constexpr auto kCategories = std::to_array<std::string_view>(
        {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
         "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
         "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"});
    static constexpr auto kScripts =
        std::to_array<std::string_view>({"Han", "Hiragana", "Katakana", "Hangul"});
    const bool is_category = std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end();
    const bool is_script = std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end();
    if (!is_category && !is_script) {
      return error(fmt::format("the property '{}' is not supported", name));
    }
    at_ = close + 1;
    return Escape{true, 0, property_members(name, is_script), negated};
  }

  // \xHH, \x{H...} or \uHHHH.
  StatusOr<Escape> hex_code(bool is_u) {
    const bool braced = !is_u && take("{");
    const size_t longest = braced ? 6 : (is_u ? 4 : 2);
    uint32_t value = 0;
    size_t digits = 0;
    while (digits < longest && at_ < in_.size() && std::isxdigit(static_cast<unsigned char>(in_[at_])) != 0) {
      const char c = in_[at_++];
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      ++digits;
    }
    if (digits == 0 || (is_u && digits != 4) || (braced && !take("}")) || value > 0x10FFFF ||
        (value >= 0xD800 && value <= 0xDFFF)) {
      return error("a hexadecimal escape is malformed");
    }
    if (!braced && !is_u && value >= 0x80) {
      return error("\\xHH above 7F is a raw byte; write \\x{..}");
    }
    return Escape{false, value, "", false};
  }

  // One member of a class: a character or an escape.
  StatusOr<Escape> class_member() {
    if (next_is("[")) {
      return error("a set inside a character class is not supported; write \\[ for the character");
    }
    if (next_is("&&")) {
      return error("the intersection && in a character class is not supported");
    }
    if (next_is("\\")) {
      return parse_escape();
    }
    return Escape{false, take_char(), "", false};
  }

  Status char_class() {
    ++at_;
    const bool negated = take("^");
    std::string members;
    std::vector<std::string> others;  // negated sets, which a PCRE2 class cannot hold together with more
    bool empty = true;
    while (at_ < in_.size() && !(next_is("]") && !empty)) {
      if (next_is("]")) {
        return error("an empty character class is not supported");
      }
      empty = false;
      ACCORD_ASSIGN_OR_RETURN(const Escape first, class_member());
      const bool is_range = next_is("-") && at_ + 1 < in_.size() && in_[at_ + 1] != ']';
      if (!is_range) {
        if (first.is_set && first.negated) {
          others.push_back(fmt::format("[^{}]", first.members));
        } else {
          members += first.is_set ? first.members : code(first.code_point);
        }
        continue;
      }
      ++at_;
      ACCORD_ASSIGN_OR_RETURN(const Escape last, class_member());
      if (first.is_set || last.is_set || last.code_point < first.code_point) {
        return error("a range in a character class is malformed");
      }
      members += code(first.code_point) + "-" + code(last.code_point);
    }
    if (!take("]")) {
      return error("a character class is not closed");
    }
    if (others.empty()) {
      atom(fmt::format("[{}{}]", negated ? "^" : "", members));
      return absl::OkStatus();
    }
    std::string any;
    if (!members.empty()) {
      any = "[" + members + "]";
    }
    for (const std::string& other : others) {
      any += (any.empty() ? "" : "|") + other;
    }
    atom(negated ? fmt::format("(?:(?!{})(?s:.))", any) : fmt::format("(?:{})", any));
    return absl::OkStatus();
  }

  Status open_group() {
    if (groups_.size() >= kMaxGroups) {
      return error(fmt::format("groups are nested more than {} deep", kMaxGroups));
    }
    struct Form {
      std::string_view text;
      std::string_view pcre2;
      bool repeatable;
    };
    static constexpr auto kForms = std::to_array<Form>({{"(?:", "(?:", true},
                                                        {"(?i:", "(?i:", true},
                                                        {"(?-i:", "(?-i:", true},
                                                        {"(?>", "(?>", true},
                                                        {"(?=", "(?=", false},
                                                        {"(?!", "(?!", false},
                                                        {"(?<=", "(?<=", false},
                                                        {"(?<!", "(?<!", false}});
    if (at_ == 0 && take("(?i)")) {  // anywhere else its reach differs between the two dialects
      separator("(?i)");
      return absl::OkStatus();
    }
    for (const Form& form : kForms) {
      if (take(form.text)) {
        groups_.push_back({out_.size(), form.repeatable});
        separator(form.pcre2);
        return absl::OkStatus();
      }
    }
    if (next_is("(?")) {
      return error("this kind of group is not supported");
    }
    ++at_;
    groups_.push_back({out_.size(), true});
    separator("(?:");  // nothing reads what a group captured
    return absl::OkStatus();
  }

  Status close_group() {
    if (groups_.empty()) {
      return error("a ')' has no '('");
    }
    ++at_;
    out_ += ")";
    atom_ = groups_.back().repeatable ? groups_.back().start : kNone;
    quantified_ = false;
    groups_.pop_back();
    return absl::OkStatus();
  }

  // {n}, {n,}, {,m} or {n,m} at the cursor, in PCRE2's form; empty when the brace is a plain character.
  std::string take_interval() {
    size_t i = at_ + 1;
    const auto digits = [&] {
      const size_t start = i;
      while (i < in_.size() && std::isdigit(static_cast<unsigned char>(in_[i])) != 0) {
        ++i;
      }
      return in_.substr(start, i - start);
    };
    const std::string_view low = digits();
    std::string_view high = low;
    const bool comma = i < in_.size() && in_[i] == ',';
    if (comma) {
      ++i;
      high = digits();
    }
    if (i >= in_.size() || in_[i] != '}' || (low.empty() && high.empty())) {
      return "";
    }
    at_ = i + 1;
    return comma ? fmt::format("{{{},{}}}", low.empty() ? "0" : low, high) : fmt::format("{{{}}}", low);
  }

  Status quantifier() {
    std::string text(1, in_[at_]);
    const bool is_brace = text == "{";
    if (is_brace) {
      text = take_interval();
      if (text.empty()) {
        atom(code(take_char()));
        return absl::OkStatus();
      }
    } else {
      ++at_;
    }
    if (atom_ == kNone) {
      return error("a quantifier has nothing to repeat");
    }
    if (take("?")) {
      if (is_brace && text.find(',') == kNone) {
        return error("'{n}?' is not supported");
      }
      text += "?";
    } else if (!is_brace && take("+")) {
      text += "+";
    }
    if (quantified_) {  // a quantifier on a quantified atom repeats the whole
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
    out_ += text;
    quantified_ = true;
    return absl::OkStatus();
  }

  struct Group {
    size_t start;
    bool repeatable;
  };

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = kNone;  // where in out_ the atom that a quantifier would repeat starts
  bool quantified_ = false;
  std::vector<Group> groups_;
};

}  // namespace

StatusOr<std::string> to_pcre2(std::string_view pattern) {
  if (find_invalid_utf8(pattern) != std::string_view::npos) {
    return data_error("the pattern is not valid UTF-8");
  }
  return Translator(pattern).run();
}

std::string literal_pattern(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = next_utf8(text, i);
    out += code(step.code_point);
    i += step.length;
  }
  return out;
}

std::string space_class() { return fmt::format("[{}]", kSpace); }
// The tokenizers ask Rust's regular expressions here, whose \w has the join controls as well.
std::string word_class() { return fmt::format("[{}\\x{{200C}}\\x{{200D}}]", word_members()); }
std::string number_class() {
  return fmt::format("[{}\\x{{11DE0}}-\\x{{11DE9}}\\x{{16FF4}}-\\x{{16FF6}}]", property_members("N", false));
}

}  // namespace accord::text
