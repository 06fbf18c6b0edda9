// Filters by name.
#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja/lexer.hpp"
#include "text/jinja/operations.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;
using Result = StatusOr<Value>;

Result call_text(const Value& input, std::string_view method, const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(std::string text, to_text(input));
  ACCORD_ASSIGN_OR_RETURN(const Value value, Value::string(std::move(text)));
  return call_method(value, method, arguments);
}

// `a.b.0` of a value.
Result walk(const Value& value, std::string_view path) {
  Value at = value;
  while (true) {
    const size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    const bool is_index = !part.empty() && part.size() < 10 &&
                          std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    ACCORD_ASSIGN_OR_RETURN(
        at, is_index ? get_item(at, Value::integer(std::stoll(std::string(part)))) : get_attribute(at, part));
    if (dot == std::string_view::npos) {
      return at;
    }
    path.remove_prefix(dot + 1);
  }
}

Result attribute_or_self(const Value& value, const std::string& path) {
  return path.empty() ? Result(value) : walk(value, path);
}

Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.named = arguments.named;
  for (size_t i = count; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  return rest;
}

// select, reject, selectattr, rejectattr
Result select(std::string_view name, const Value& input, const Arguments& arguments) {
  const bool wanted = name.starts_with("select");
  const bool by_attribute = name.ends_with("attr");
  const size_t fixed = by_attribute ? 1 : 0;
  std::string path;
  if (by_attribute) {
    ACCORD_ASSIGN_OR_RETURN(path, arguments.text(0, "attribute", ""));
  }
  if (by_attribute && path.empty()) {
    return data_error("{}: needs an attribute's name", name);
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string test, arguments.text(fixed, "test", ""));
  const Arguments rest = rest_of(arguments, fixed + 1);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  std::vector<Value> kept;
  for (const Value& item : items) {
    ACCORD_ASSIGN_OR_RETURN(const Value value, attribute_or_self(item, path));
    ACCORD_ASSIGN_OR_RETURN(const bool passes,
                            test.empty() ? StatusOr<bool>(truthy(value)) : apply_test(test, value, rest));
    if (passes == wanted) {
      kept.push_back(item);
    }
  }
  return Value::list(std::move(kept), Shape::kIterator);
}

Result map(const Value& input, const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  std::vector<Value> mapped;
  const bool by_attribute = arguments.positional.empty();
  if (by_attribute) {
    ACCORD_RETURN_IF_ERROR(arguments.accept("map", {"attribute", "default"}));
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string name, arguments.text(0, "attribute", ""));
  if (name.empty()) {
    return data_error("map: needs a filter's name, or attribute=");
  }
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : items) {
    Result value = by_attribute ? walk(item, name) : apply_filter(name, item, rest);
    if (!value.ok()) {
      return value;
    }
    const Value* missing = by_attribute ? arguments.find(1, "default") : nullptr;
    mapped.push_back(missing != nullptr && value->is(Kind::kUndefined) ? *missing : *std::move(value));
  }
  return Value::list(std::move(mapped), Shape::kIterator);
}

// Texts are compared without case unless case_sensitive is given.
Result sort_key(const Value& value, bool case_sensitive) {
  return case_sensitive || !value.is(Kind::kString) ? Result(value) : call_method(value, "lower", {});
}

using Keyed = std::pair<Value, Value>;  // key, item

Result sorted(std::vector<Keyed> keyed, bool reverse) {
  Status failure;
  const auto before = [&](const Keyed& a, const Keyed& b) {
    const StatusOr<int> order = reverse ? compare(b.first, a.first) : compare(a.first, b.first);
    if (!order.ok()) {
      failure = order.status();
      return false;
    }
    return *order < 0;
  };
  // Values of different kinds are found before sorting, which needs an order.
  for (size_t i = 1; i < keyed.size() && failure.ok(); ++i) {
    before(keyed[0], keyed[i]);
  }
  ACCORD_RETURN_IF_ERROR(failure);
  std::stable_sort(keyed.begin(), keyed.end(), before);
  ACCORD_RETURN_IF_ERROR(failure);
  std::vector<Value> items;
  for (Keyed& each : keyed) {
    items.push_back(std::move(each.second));
  }
  return Value::list(std::move(items));
}

Result sort(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("sort", {"reverse", "case_sensitive", "attribute"}));
  ACCORD_ASSIGN_OR_RETURN(const bool reverse, arguments.flag(0, "reverse", false));
  ACCORD_ASSIGN_OR_RETURN(const bool case_sensitive, arguments.flag(1, "case_sensitive", false));
  ACCORD_ASSIGN_OR_RETURN(const std::string path, arguments.text(2, "attribute", ""));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    ACCORD_ASSIGN_OR_RETURN(const Value value, attribute_or_self(item, path));
    ACCORD_ASSIGN_OR_RETURN(Value key, sort_key(value, case_sensitive));
    keyed.emplace_back(std::move(key), item);
  }
  return sorted(std::move(keyed), reverse);
}

Result dict_sort(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("dictsort", {"case_sensitive", "by", "reverse"}));
  ACCORD_ASSIGN_OR_RETURN(const bool case_sensitive, arguments.flag(0, "case_sensitive", false));
  ACCORD_ASSIGN_OR_RETURN(const std::string by, arguments.text(1, "by", "key"));
  ACCORD_ASSIGN_OR_RETURN(const bool reverse, arguments.flag(2, "reverse", false));
  if (!input.is(Kind::kDict) || (by != "key" && by != "value")) {
    return data_error("dictsort: sorts a dict by key or by value");
  }
  std::vector<Keyed> keyed;
  for (const auto& [name, value] : input.as_dict().members) {
    ACCORD_ASSIGN_OR_RETURN(Value key, Value::string(name));
    ACCORD_ASSIGN_OR_RETURN(Value order, sort_key(by == "key" ? key : value, case_sensitive));
    ACCORD_ASSIGN_OR_RETURN(Value pair, Value::list({std::move(key), value}, Shape::kTuple));
    keyed.emplace_back(std::move(order), std::move(pair));
  }
  return sorted(std::move(keyed), reverse);
}

Result unique(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("unique", {"case_sensitive", "attribute"}));
  ACCORD_ASSIGN_OR_RETURN(const bool case_sensitive, arguments.flag(0, "case_sensitive", false));
  ACCORD_ASSIGN_OR_RETURN(const std::string path, arguments.text(1, "attribute", ""));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  if (items.size() > 10000) {
    return data_error("unique: more than 10000 items");
  }
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    ACCORD_ASSIGN_OR_RETURN(const Value value, attribute_or_self(item, path));
    ACCORD_ASSIGN_OR_RETURN(Value key, sort_key(value, case_sensitive));
    if (std::none_of(seen.begin(), seen.end(), [&](const Value& each) { return equal(each, key); })) {
      seen.push_back(std::move(key));
      kept.push_back(item);
    }
  }
  return Value::list(std::move(kept), Shape::kIterator);
}

Result join(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("join", {"d", "attribute"}));
  ACCORD_ASSIGN_OR_RETURN(const std::string separator, arguments.text(0, "d", ""));
  ACCORD_ASSIGN_OR_RETURN(const std::string path, arguments.text(1, "attribute", ""));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    ACCORD_ASSIGN_OR_RETURN(const Value value, attribute_or_self(items[i], path));
    ACCORD_ASSIGN_OR_RETURN(const std::string text, to_text(value));
    out += (i == 0 ? "" : separator) + text;
    if (out.size() > kMaxText) {
      return data_error("join: a text of more than {} bytes", kMaxText);
    }
  }
  return Value::string(std::move(out));
}

Result to_json_filter(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  ACCORD_ASSIGN_OR_RETURN(style.ensure_ascii, arguments.flag(0, "ensure_ascii", false));
  const Value* indent = arguments.find(1, "indent");
  if (indent != nullptr && !indent->is(Kind::kNone)) {
    ACCORD_ASSIGN_OR_RETURN(const int64_t columns, arguments.integer(1, "indent", 0));
    if (columns < 0 || columns > 64) {
      return data_error("tojson: indent must be from 0 to 64");
    }
    style.indent = static_cast<int>(columns);
    style.item_separator = ",";
  }
  const Value* separators = arguments.find(2, "separators");
  if (separators != nullptr && !separators->is(Kind::kNone)) {
    if (!separators->is(Kind::kList) || separators->as_list().items.size() != 2 ||
        !separators->as_list().items[0].is(Kind::kString) ||
        !separators->as_list().items[1].is(Kind::kString)) {
      return data_error("tojson: separators must be two texts");
    }
    style.item_separator = separators->as_list().items[0].as_string();
    style.key_separator = separators->as_list().items[1].as_string();
  }
  ACCORD_ASSIGN_OR_RETURN(style.sort_keys, arguments.flag(3, "sort_keys", false));
  ACCORD_ASSIGN_OR_RETURN(std::string text, to_json(input, style));
  return Value::string(std::move(text));
}

Result indent(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("indent", {"width", "first", "blank"}));
  std::string margin(4, ' ');
  const Value* width = arguments.find(0, "width");
  if (width != nullptr && width->is(Kind::kString)) {
    margin = width->as_string();
  } else if (width != nullptr) {
    ACCORD_ASSIGN_OR_RETURN(const int64_t columns, arguments.integer(0, "width", 4));
    if (columns < 0 || columns > 1000) {
      return data_error("indent: the width must be from 0 to 1000");
    }
    margin.assign(static_cast<size_t>(columns), ' ');
  }
  ACCORD_ASSIGN_OR_RETURN(const bool first, arguments.flag(1, "first", false));
  ACCORD_ASSIGN_OR_RETURN(const bool blank, arguments.flag(2, "blank", false));
  if (!input.is(Kind::kString)) {
    return data_error("indent: needs a str, not a {}", type_name(input));
  }
  std::string out = first ? margin : "";
  const std::string& text = input.as_string();
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    const bool next_is_blank = i + 1 >= text.size() || text[i + 1] == '\n';
    if (text[i] == '\n' && (blank || !next_is_blank)) {
      out += margin;
    }
    if (out.size() > kMaxText) {
      return data_error("indent: a text of more than {} bytes", kMaxText);
    }
  }
  return Value::string(std::move(out));
}

// Words as Jinja cuts them, which is not how str.title() does.
Result title(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("title", {}));
  ACCORD_ASSIGN_OR_RETURN(const std::string text, to_text(input));
  if (std::any_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; })) {
    return data_error("title: characters beyond ASCII are not supported");
  }
  std::string out;
  bool first = true;
  for (const char c : text) {
    const bool lower = c >= 'a' && c <= 'z';
    const bool upper = c >= 'A' && c <= 'Z';
    out += static_cast<char>(first && lower ? c - 'a' + 'A' : !first && upper ? c - 'A' + 'a' : c);
    first = std::string_view("- \t\n\v\f\r\x1c\x1d\x1e\x1f({[<").find(c) != std::string_view::npos;
  }
  return Value::string(std::move(out));
}

Result to_integer(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("int", {"default"}));
  ACCORD_ASSIGN_OR_RETURN(const int64_t missing, arguments.integer(0, "default", 0));
  if (input.is(Kind::kInt) || input.is(Kind::kBool)) {
    return Value::integer(input.as_integer());
  }
  if (input.is(Kind::kFloat)) {
    if (!(std::fabs(input.as_real()) < 9e18)) {
      return data_error("int: {} does not fit 64 bits", input.as_real());
    }
    return Value::integer(static_cast<int64_t>(input.as_real()));
  }
  if (input.is(Kind::kUndefined)) {
    return undefined_error(input);
  }
  if (!input.is(Kind::kString)) {
    return Value::integer(missing);
  }
  const std::string_view text = strip_right(strip_left(input.as_string()));
  const std::string_view digits = text.substr(text.starts_with('-') || text.starts_with('+') ? 1 : 0);
  const bool whole = !digits.empty() &&
                     std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!whole && text.find_first_of("0123456789") != std::string_view::npos) {
    return data_error("int: the text '{}' is not a plain whole number", printable(text));
  }
  if (digits.size() > 18) {
    return data_error("int: the number has more than 18 digits");
  }
  return Value::integer(whole ? std::stoll(std::string(text)) : missing);
}

Result first_or_last(const Value& input, bool last) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  if (items.empty()) {
    return Value::undefined(last ? "last" : "first");
  }
  return last ? items.back() : items.front();
}

Result as_list(const Value& input, bool reverse) {
  ACCORD_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(input));
  if (reverse) {
    std::reverse(items.begin(), items.end());
    if (input.is(Kind::kString)) {
      std::string text;
      for (const Value& item : items) {
        text += item.as_string();
      }
      return Value::string(std::move(text));
    }
  }
  return Value::list(std::move(items), reverse ? Shape::kIterator : Shape::kList);
}

Result extreme(const Value& input, bool largest) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  if (items.empty()) {
    return Value::undefined(largest ? "max" : "min");
  }
  Value best = items.front();
  for (const Value& item : items) {
    if (item.is(Kind::kString)) {
      return data_error("min and max of texts are not supported");
    }
    ACCORD_ASSIGN_OR_RETURN(const int order, compare(item, best));
    best = (largest ? order > 0 : order < 0) ? item : best;
  }
  return best;
}

Result items_of(const Value& input) {
  if (input.is(Kind::kUndefined)) {
    return Value::list({}, Shape::kIterator);
  }
  if (!input.is(Kind::kDict)) {
    return data_error("items: needs a dict, not a {}", type_name(input));
  }
  ACCORD_ASSIGN_OR_RETURN(const Value view, call_method(input, "items", {}));
  return Value::list(view.as_list().items, Shape::kIterator);
}

Result default_value(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("default", {"default_value", "boolean"}));
  ACCORD_ASSIGN_OR_RETURN(const bool any_false, arguments.flag(1, "boolean", false));
  if (!input.is(Kind::kUndefined) && !(any_false && !truthy(input))) {
    return input;
  }
  const Value* missing = arguments.find(0, "default_value");
  return missing != nullptr ? Result(*missing) : Value::string("");
}

Result sum(const Value& input, const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("sum", {"attribute"}));
  ACCORD_ASSIGN_OR_RETURN(const std::string path, arguments.text(0, "attribute", ""));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(input));
  Value total = Value::integer(0);
  for (const Value& item : items) {
    ACCORD_ASSIGN_OR_RETURN(const Value value, attribute_or_self(item, path));
    ACCORD_ASSIGN_OR_RETURN(total, arithmetic("+", total, value));
  }
  return total;
}

Result without_arguments(std::string_view name, const Value& input) {
  if (name == "length" || name == "count") {
    ACCORD_ASSIGN_OR_RETURN(const int64_t size, length(input));
    return Value::integer(size);
  }
  if (name == "string") {
    ACCORD_ASSIGN_OR_RETURN(std::string text, to_text(input));
    return Value::string(std::move(text));
  }
  if (name == "first" || name == "last") {
    return first_or_last(input, name == "last");
  }
  if (name == "list" || name == "reverse") {
    return as_list(input, name == "reverse");
  }
  if (name == "min" || name == "max") {
    return extreme(input, name == "max");
  }
  if (name == "items") {
    return items_of(input);
  }
  if (name == "float") {
    return input.is_number() ? Result(Value::real(input.as_number()))
                             : data_error("float: needs a number, not a {}", type_name(input));
  }
  if (name == "abs") {
    ACCORD_ASSIGN_OR_RETURN(const int order, compare(input, Value::integer(0)));
    return order < 0               ? negate(input)
           : input.is(Kind::kBool) ? Value::integer(input.as_integer())
                                   : Result(input);
  }
  return input.is(Kind::kString) ? Result(input) : without_arguments("string", input);  // safe
}

}  // namespace

StatusOr<Value> apply_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  constexpr std::array<std::string_view, 14> kWithout = {"length", "count",   "string", "first", "last",
                                                         "list",   "reverse", "min",    "max",   "items",
                                                         "float",  "abs",     "safe",   ""};
  if (!name.empty() && std::find(kWithout.begin(), kWithout.end(), name) != kWithout.end()) {
    ACCORD_RETURN_IF_ERROR(arguments.accept(name, {}));
    return without_arguments(name, input);
  }
  if (name == "trim") {
    return call_text(input, "strip", arguments);
  }
  if (name == "title") {
    return title(input, arguments);
  }
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "replace") {
    return call_text(input, name, arguments);
  }
  if (name == "tojson") {
    return to_json_filter(input, arguments);
  }
  if (name == "default" || name == "d") {
    return default_value(input, arguments);
  }
  if (name == "join") {
    return join(input, arguments);
  }
  if (name == "map") {
    return map(input, arguments);
  }
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return select(name, input, arguments);
  }
  if (name == "sort") {
    return sort(input, arguments);
  }
  if (name == "dictsort") {
    return dict_sort(input, arguments);
  }
  if (name == "unique") {
    return unique(input, arguments);
  }
  if (name == "sum") {
    return sum(input, arguments);
  }
  if (name == "indent") {
    return indent(input, arguments);
  }
  if (name == "int") {
    return to_integer(input, arguments);
  }
  return data_error("the filter '{}' is not supported", printable(name));
}

}  // namespace accord::text::jinja
