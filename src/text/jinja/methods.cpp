// Methods of Python's str, dict and list.
#include <algorithm>
#include <array>
#include <functional>

#include "text/jinja/lexer.hpp"
#include "text/jinja/operations.hpp"
#include "text/jinja/unicode.hpp"
#include "text/utf8.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;

// All methods of Python: what is not built must not be taken for a missing attribute.
constexpr auto kTextMethods = std::to_array<std::string_view>(
    {"capitalize", "casefold", "center",       "count",        "encode",     "endswith",    "expandtabs",
     "find",       "format",   "format_map",   "index",        "isalnum",    "isalpha",     "isascii",
     "isdecimal",  "isdigit",  "isidentifier", "islower",      "isnumeric",  "isprintable", "isspace",
     "istitle",    "isupper",  "join",         "ljust",        "lower",      "lstrip",      "maketrans",
     "partition",  "replace",  "removeprefix", "removesuffix", "rfind",      "rindex",      "rjust",
     "rpartition", "rsplit",   "rstrip",       "split",        "splitlines", "startswith",  "strip",
     "swapcase",   "title",    "translate",    "upper",        "zfill"});
constexpr auto kDictMethods =
    std::to_array<std::string_view>({"clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem",
                                     "setdefault", "update", "values"});
constexpr auto kListMethods = std::to_array<std::string_view>(
    {"append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"});

template <class Names>
bool listed(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

enum class Side : uint8_t { kLeft, kRight, kBoth };

StatusOr<Value> strip(const std::string& text, const Arguments& arguments, Side side) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("strip", {"chars"}));
  std::string_view rest = text;
  const Value* given = arguments.find(0, "chars");
  if (given == nullptr || given->is(Kind::kNone)) {
    rest = side == Side::kRight ? rest : strip_left(rest);
    rest = side == Side::kLeft ? rest : strip_right(rest);
    return Value::string(std::string(rest));
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string chars, arguments.text(0, "chars", ""));
  std::vector<std::string> set;
  for (size_t at = 0; at < chars.size();) {
    set.push_back(chars.substr(at, next_utf8(chars, at).length));
    at += set.back().size();
  }
  const auto strip_while = [&](auto matches, auto remove) {
    for (bool found = true; found;) {
      const auto hit = std::find_if(set.begin(), set.end(), matches);
      found = hit != set.end();
      if (found) {
        remove(hit->size());
      }
    }
  };
  if (side != Side::kRight) {
    strip_while([&](const std::string& each) { return rest.starts_with(each); },
                [&](size_t size) { rest.remove_prefix(size); });
  }
  if (side != Side::kLeft) {
    strip_while([&](const std::string& each) { return rest.ends_with(each); },
                [&](size_t size) { rest.remove_suffix(size); });
  }
  return Value::string(std::string(rest));
}

StatusOr<Value> text_list(const std::vector<std::string>& parts) {
  std::vector<Value> items;
  for (const std::string& part : parts) {
    ACCORD_ASSIGN_OR_RETURN(Value item, Value::string(part));
    items.push_back(std::move(item));
  }
  return Value::list(std::move(items));
}

std::vector<std::string> split_at_space(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  for (text = strip_left(text); !text.empty(); text = strip_left(text)) {
    size_t end = 0;
    while (end < text.size() && !is_space(next_utf8(text, end).code_point)) {
      end += next_utf8(text, end).length;
    }
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      end = text.size();  // the rest keeps its white space at the end
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

StatusOr<Value> split(const std::string& text, const Arguments& arguments, bool from_right) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("split", {"sep", "maxsplit"}));
  ACCORD_ASSIGN_OR_RETURN(const int64_t limit, arguments.integer(1, "maxsplit", -1));
  const Value* given = arguments.find(0, "sep");
  if (given == nullptr || given->is(Kind::kNone)) {
    if (from_right && limit >= 0) {
      return data_error("rsplit: a limit without a separator is not supported");
    }
    return text_list(split_at_space(text, limit));
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string separator, arguments.text(0, "sep", ""));
  if (separator.empty()) {
    return data_error("split: the separator is empty");
  }
  std::vector<std::string> parts;
  std::string_view rest = text;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? rest.rfind(separator) : rest.find(separator);
    if (at == std::string_view::npos) {
      break;
    }
    parts.emplace_back(from_right ? rest.substr(at + separator.size()) : rest.substr(0, at));
    rest = from_right ? rest.substr(0, at) : rest.substr(at + separator.size());
    if (parts.size() > kMaxItems) {
      return data_error("split: more than {} parts", kMaxItems);
    }
  }
  parts.emplace_back(rest);
  if (from_right) {
    std::reverse(parts.begin(), parts.end());
  }
  return text_list(parts);
}

StatusOr<Value> split_lines(const std::string& text, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("splitlines", {"keepends"}));
  ACCORD_ASSIGN_OR_RETURN(const bool keep, arguments.flag(0, "keepends", false));
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text, at);
    const uint32_t c = step.code_point;
    const bool ends =
        (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    size_t next = at + step.length;
    if (ends) {
      next += c == '\r' && next < text.size() && text[next] == '\n' ? 1 : 0;
      lines.push_back(text.substr(start, (keep ? next : at) - start));
      start = next;
    }
    at = next;
  }
  if (start < text.size()) {
    lines.push_back(text.substr(start));
  }
  return text_list(lines);
}

StatusOr<Value> replace(const std::string& text, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("replace", {"old", "new", "count"}));
  ACCORD_ASSIGN_OR_RETURN(const std::string from, arguments.text(0, "old", ""));
  ACCORD_ASSIGN_OR_RETURN(const std::string to, arguments.text(1, "new", ""));
  ACCORD_ASSIGN_OR_RETURN(const int64_t count, arguments.integer(2, "count", -1));
  if (arguments.find(1, "new") == nullptr || from.empty()) {
    return data_error("replace: needs a text to replace, which is not empty, and a new one");
  }
  std::string out;
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t found = text.find(from, at);
    if (found == std::string::npos) {
      break;
    }
    out.append(text, at, found - at);
    out += to;
    at = found + from.size();
    if (out.size() > kMaxText) {
      return data_error("replace: a text of more than {} bytes", kMaxText);
    }
  }
  out.append(text, at);
  return Value::string(std::move(out));
}

StatusOr<Value> begins_or_ends(const std::string& text, const Arguments& arguments, bool ends) {
  ACCORD_RETURN_IF_ERROR(arguments.accept(ends ? "endswith" : "startswith", {"prefix"}));
  const auto matches = [&](const std::string& part) {
    return ends ? text.ends_with(part) : text.starts_with(part);
  };
  const Value* given = arguments.find(0, "prefix");
  if (given != nullptr && given->is(Kind::kString)) {
    return Value::boolean(matches(given->as_string()));
  }
  if (given != nullptr && given->is(Kind::kList) && given->as_list().shape == Shape::kTuple) {
    const std::vector<Value>& parts = given->as_list().items;
    return Value::boolean(std::any_of(parts.begin(), parts.end(), [&](const Value& part) {
      return part.is(Kind::kString) && matches(part.as_string());
    }));
  }
  return data_error("startswith and endswith need a str or a tuple of them, not a {}",
                    given == nullptr ? "nothing" : type_name(*given));
}

bool is_ascii(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; });
}
char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_letter(char c) { return to_lower(c) >= 'a' && to_lower(c) <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

StatusOr<Value> change_case_beyond_ascii(const std::string& text, std::string_view name) {
  if (name != "upper" && name != "lower") {
    return data_error("{}: characters beyond ASCII are not supported", name);
  }
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text, at);
    const auto changed = name == "upper" ? upper_case(step.code_point) : lower_case(step.code_point);
    if (!changed) {
      return data_error("{}: '{}' is not supported", name, text.substr(at, step.length));
    }
    append_utf8(out, *changed);
    at += step.length;
  }
  return Value::string(std::move(out));
}

StatusOr<Value> change_case(const std::string& text, std::string_view name) {
  if (!is_ascii(text)) {
    return change_case_beyond_ascii(text, name);
  }
  std::string out = text;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool first = name == "title" ? i == 0 || !is_letter(text[i - 1]) : i == 0;
    const bool upper = name == "upper" || (name != "lower" && first);
    out[i] = upper ? to_upper(text[i]) : to_lower(text[i]);
  }
  return Value::string(std::move(out));
}

StatusOr<Value> classify(const std::string& text, std::string_view name) {
  if (!is_ascii(text)) {
    return data_error("{}: characters beyond ASCII are not supported", name);
  }
  const auto all = [&](auto matches) {
    return Value::boolean(!text.empty() && std::all_of(text.begin(), text.end(), matches));
  };
  if (name == "isspace") {
    return all([](char c) { return is_space(static_cast<uint8_t>(c)); });
  }
  if (name == "isalpha") {
    return all(is_letter);
  }
  if (name == "isalnum") {
    return all([](char c) { return is_letter(c) || is_digit(c); });
  }
  if (name == "isupper" || name == "islower") {
    const bool upper = name == "isupper";
    const bool has_letter = std::any_of(text.begin(), text.end(), is_letter);
    return Value::boolean(has_letter && std::all_of(text.begin(), text.end(), [&](char c) {
                            return !is_letter(c) || (upper ? to_upper(c) : to_lower(c)) == c;
                          }));
  }
  return all(is_digit);
}

// Positions are counted in code points.
StatusOr<Value> find(const std::string& text, std::string_view name, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept(name, {"sub"}));
  ACCORD_ASSIGN_OR_RETURN(const std::string sub, arguments.text(0, "sub", ""));
  if (name == "count") {
    if (sub.empty()) {
      return data_error("count: an empty text is not supported");
    }
    int64_t count = 0;
    for (size_t at = text.find(sub); at != std::string::npos; at = text.find(sub, at + sub.size())) {
      ++count;
    }
    return Value::integer(count);
  }
  const size_t at = name == "rfind" || name == "rindex" ? text.rfind(sub) : text.find(sub);
  if (at == std::string::npos) {
    return name.ends_with("index") ? StatusOr<Value>(data_error("{}: the text is not found", name))
                                   : Value::integer(-1);
  }
  ACCORD_ASSIGN_OR_RETURN(const Value before, Value::string(text.substr(0, at)));
  ACCORD_ASSIGN_OR_RETURN(const int64_t position, length(before));
  return Value::integer(position);
}

StatusOr<Value> join(const std::string& separator, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("join", {"iterable"}));
  if (arguments.positional.size() != 1) {
    return data_error("join: needs a list");
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(arguments.positional[0]));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::kString)) {
      return data_error("join: item {} is a {}, not a str", i, type_name(items[i]));
    }
    out += (i == 0 ? "" : separator) + items[i].as_string();
    if (out.size() > kMaxText) {
      return data_error("join: a text of more than {} bytes", kMaxText);
    }
  }
  return Value::string(std::move(out));
}

// `{}`, `{0}` and `{{`; no names, conversions or formats.
StatusOr<Value> format(const std::string& text, const Arguments& arguments) {
  if (!arguments.named.empty()) {
    return data_error("format: named arguments are not supported");
  }
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    const size_t end = text.find('}', i);
    const std::string field = end == std::string::npos ? "?" : text.substr(i + 1, end - i - 1);
    if (c == '}' ||
        (!field.empty() && (field.size() > 2 || !std::all_of(field.begin(), field.end(), is_digit)))) {
      return data_error("format: only the fields {{}} and {{0}} are supported");
    }
    const size_t index = field.empty() ? next++ : static_cast<size_t>(std::stoi(field));
    if (index >= arguments.positional.size()) {
      return data_error("format: there is no argument {}", index);
    }
    ACCORD_ASSIGN_OR_RETURN(const std::string value, to_text(arguments.positional[index]));
    out += value;
    i = end;
    if (out.size() > kMaxText) {
      return data_error("format: a text of more than {} bytes", kMaxText);
    }
  }
  return Value::string(std::move(out));
}

StatusOr<Value> text_method(const std::string& text, std::string_view name, const Arguments& arguments) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return strip(text, arguments,
                 name == "strip"    ? Side::kBoth
                 : name == "lstrip" ? Side::kLeft
                                    : Side::kRight);
  }
  if (name == "split" || name == "rsplit") {
    return split(text, arguments, name == "rsplit");
  }
  if (name == "splitlines") {
    return split_lines(text, arguments);
  }
  if (name == "startswith" || name == "endswith") {
    return begins_or_ends(text, arguments, name == "endswith");
  }
  if (name == "replace") {
    return replace(text, arguments);
  }
  if (name == "join") {
    return join(text, arguments);
  }
  if (name == "format") {
    return format(text, arguments);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    ACCORD_RETURN_IF_ERROR(arguments.accept(name, {"affix"}));
    ACCORD_ASSIGN_OR_RETURN(const std::string affix, arguments.text(0, "affix", ""));
    const bool prefix = name == "removeprefix";
    const bool has = prefix ? text.starts_with(affix) : text.ends_with(affix);
    return Value::string(!has     ? text
                         : prefix ? text.substr(affix.size())
                                  : text.substr(0, text.size() - affix.size()));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return find(text, name, arguments);
  }
  ACCORD_RETURN_IF_ERROR(arguments.accept(name, {}));
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") {
    return change_case(text, name);
  }
  if (name == "isspace" || name == "isalpha" || name == "isalnum" || name == "isupper" || name == "islower" ||
      name == "isdigit" || name == "isdecimal" || name == "isnumeric") {
    return classify(text, name);
  }
  return data_error("the method '{}' of a str is not supported", name);
}

StatusOr<Value> dict_method(const Value& receiver, std::string_view name, const Arguments& arguments) {
  const Dict& dict = receiver.as_dict();
  if (name == "get") {
    ACCORD_RETURN_IF_ERROR(arguments.accept("get", {"key", "default"}));
    const Value* key = arguments.find(0, "key");
    const Value* missing = arguments.find(1, "default");
    if (key == nullptr) {
      return data_error("get: needs a key");
    }
    const Value* found = key->is(Kind::kString) ? dict.find(key->as_string()) : nullptr;
    return found != nullptr ? *found : missing != nullptr ? *missing : Value::none();
  }
  ACCORD_RETURN_IF_ERROR(arguments.accept(name, {}));
  if (name == "copy") {
    return receiver;
  }
  if (name != "keys" && name != "values" && name != "items") {
    return data_error("the method '{}' of a dict is not supported", name);
  }
  std::vector<Value> items;
  for (const auto& [key, value] : dict.members) {
    ACCORD_ASSIGN_OR_RETURN(Value key_value, Value::string(key));
    if (name == "items") {
      ACCORD_ASSIGN_OR_RETURN(Value pair, Value::list({std::move(key_value), value}, Shape::kTuple));
      items.push_back(std::move(pair));
    } else {
      items.push_back(name == "keys" ? std::move(key_value) : value);
    }
  }
  return Value::list(std::move(items), Shape::kView);
}

}  // namespace

bool is_method(const Value& receiver, std::string_view name) {
  switch (receiver.kind()) {
    case Kind::kString:
      return listed(kTextMethods, name);
    case Kind::kDict:
      return listed(kDictMethods, name);
    case Kind::kList:
      return listed(kListMethods, name);
    default:
      return false;
  }
}

StatusOr<Value> call_method(const Value& receiver, std::string_view name, const Arguments& arguments) {
  if (receiver.is(Kind::kString)) {
    return text_method(receiver.as_string(), name, arguments);
  }
  if (receiver.is(Kind::kDict)) {
    return dict_method(receiver, name, arguments);
  }
  if (receiver.is(Kind::kList) && name == "copy") {
    ACCORD_RETURN_IF_ERROR(arguments.accept(name, {}));
    return receiver;
  }
  return data_error("the method '{}' of a {} is not supported", name, type_name(receiver));
}

}  // namespace accord::text::jinja
