#include "reward/math_normalize.hpp"

#include <utility>

#include "reward/text.hpp"

namespace accord::reward {
namespace {

using std::string_view;

// Applied one after the other, each over the whole text; the order matters ("5 units squared" gives "5d").
constexpr std::pair<string_view, string_view> kReplaced[] = {
    {"an ", ""}, {"a ", ""},       {".$", "$"},           {"\\$", ""},          {"\\ ", ""},
    {" ", ""},   {"mbox", "text"}, {",\\text{and}", ","}, {"\\text{and}", ","}, {"\\text{m}", "\\text{}"},
};
constexpr string_view kRemoved[] = {
    "square",     "ways",       "integers",  "dollars",      "mph",
    "inches",     "hours",      "km",        "units",        "\\ldots",
    "sue",        "points",     "feet",      "minutes",      "digits",
    "cents",      "degrees",    "cm",        "gm",           "pounds",
    "meters",     "meals",      "edges",     "students",     "childrentickets",
    "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
    "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
    "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
    "\\dots",
};

// Calls edit(line) on every line and joins the results; the edits below never cross a line end.
template <class Edit>
std::string per_line(string_view text, Edit edit) {
  std::string out;
  while (true) {
    const size_t end = text.find('\n');
    edit(text.substr(0, end), out);
    if (end == string_view::npos) {
      return out;
    }
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

// A line with two dollar signs becomes what stands between the first two, dollars kept.
void keep_first_formula(string_view line, std::string& out) {
  const size_t first = line.find('$');
  const size_t second = first == string_view::npos ? first : line.find('$', first + 1);
  out += second == string_view::npos ? line : line.substr(first, second - first + 1);
}

// \command{content} -> content, up to the nearest closing brace; not applied to its own result.
void unwrap_nearest(string_view line, string_view open, std::string& out) {
  while (true) {
    const size_t found = line.find(open);
    const size_t close = found == string_view::npos ? found : line.find('}', found + open.size());
    if (close == string_view::npos) {
      out += line;
      return;
    }
    out += line.substr(0, found);
    out += line.substr(found + open.size(), close - found - open.size());
    line.remove_prefix(close + 1);
  }
}

// \boxed{content} -> content, up to the line's last closing brace.
void unwrap_farthest(string_view line, string_view open, std::string& out) {
  const size_t found = line.find(open);
  const size_t close = line.rfind('}');
  if (found == string_view::npos || close == string_view::npos || close < found + open.size()) {
    out += line;
    return;
  }
  out += line.substr(0, found);
  out += line.substr(found + open.size(), close - found - open.size());
  out += line.substr(close + 1);
}

// fracab -> frac{a}{b}; a may be a line end, b may not.
std::string brace_fractions(string_view text) {
  constexpr string_view kFrac = "frac";
  std::string out;
  size_t begin = 0;
  for (size_t found = text.find(kFrac); found != string_view::npos; found = text.find(kFrac, found)) {
    const size_t a = found + kFrac.size();
    const size_t a_length = character_length(text, a);
    const size_t b = a + a_length;
    const size_t b_length = character_length(text, b);
    if (a_length == 0 || b_length == 0 || text[a] == '{' || text[b] == '\n') {
      ++found;
      continue;
    }
    out += text.substr(begin, a - begin);
    out += '{';
    out += text.substr(a, a_length);
    out += "}{";
    out += text.substr(b, b_length);
    out += '}';
    begin = b + b_length;
    found = begin;
  }
  out += text.substr(begin);
  return out;
}

// sqrta -> sqrt{a}.
std::string brace_roots(string_view text) {
  constexpr string_view kSqrt = "sqrt";
  std::string out;
  size_t begin = 0;
  for (size_t found = text.find(kSqrt); found != string_view::npos; found = text.find(kSqrt, found)) {
    const size_t a = found + kSqrt.size();
    const size_t length = character_length(text, a);
    if (length == 0 || text[a] == '{') {
      ++found;
      continue;
    }
    out += text.substr(begin, a - begin);
    out += '{';
    out += text.substr(a, length);
    out += '}';
    begin = a + length;
    found = begin;
  }
  out += text.substr(begin);
  return out;
}

bool all_digits(string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_length(text, i);
    if (!is_digit(text.substr(i, length))) {
      return false;
    }
    i += length;
  }
  return !text.empty();
}

}  // namespace

std::string normalize_math(string_view answer, std::span<const string_view> also_removed) {
  std::string text(answer.substr(answer.rfind('=') + 1));  // npos + 1 is 0
  for (const auto& [from, to] : kReplaced) {
    replace_all(text, from, to);
  }
  for (const string_view removed : kRemoved) {
    replace_all(text, removed, "");
  }
  for (const string_view removed : also_removed) {
    replace_all(text, removed, "");
  }
  text = per_line(text, keep_first_formula);
  for (const string_view open : {"\\text{", "\\textbf{", "\\overline{"}) {
    text = per_line(text, [&](string_view line, std::string& out) { unwrap_nearest(line, open, out); });
  }
  text = per_line(text, [](string_view line, std::string& out) { unwrap_farthest(line, "\\boxed{", out); });
  text = brace_fractions(text);
  text = brace_roots(text);
  replace_all(text, "$", "");
  std::string without_commas = text;
  replace_all(without_commas, ",", "");
  if (all_digits(without_commas)) {
    text = std::move(without_commas);
  }
  return std::string(strip(text));
}

}  // namespace accord::reward
