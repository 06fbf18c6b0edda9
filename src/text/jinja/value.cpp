#include "text/jinja/value.hpp"

#include <algorithm>
#include <cmath>

#include "text/utf8.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;

int nesting_of(const Value& value) {
  if (value.is(Kind::kList)) {
    return value.as_list().nesting;
  }
  return value.is(Kind::kDict) ? value.as_dict().nesting : 0;
}

Status check_size(size_t items, int nesting) {
  if (items > kMaxItems) {
    return data_error("a list of {} items; the limit is {}", items, kMaxItems);
  }
  if (nesting > kMaxNesting) {
    return data_error("lists are nested more than {} deep", kMaxNesting);
  }
  return absl::OkStatus();
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

Value Value::undefined(std::string name) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(name))}));
}

StatusOr<Value> Value::string(std::string value) {
  if (value.size() > kMaxText) {
    return data_error("a text of {} bytes; the limit is {}", value.size(), kMaxText);
  }
  return Value(Data(std::make_shared<const std::string>(std::move(value))));
}

StatusOr<Value> Value::list(std::vector<Value> items, Shape shape) {
  List list;
  for (const Value& item : items) {
    list.nesting = std::max(list.nesting, 1 + nesting_of(item));
  }
  ACCORD_RETURN_IF_ERROR(check_size(items.size(), list.nesting));
  list.items = std::move(items);
  list.shape = shape;
  return Value(Data(std::make_shared<const List>(std::move(list))));
}

StatusOr<Value> Value::dict(std::vector<std::pair<std::string, Value>> members) {
  Dict dict;
  for (const auto& [name, value] : members) {
    dict.nesting = std::max(dict.nesting, 1 + nesting_of(value));
  }
  ACCORD_RETURN_IF_ERROR(check_size(members.size(), dict.nesting));
  dict.members = std::move(members);
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

StatusOr<Value> Value::from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null:
      return none();
    case Json::value_t::boolean:
      return boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return data_error("the number {} is too large for a template", json.dump());
      }
      return integer(json.get<int64_t>());
    case Json::value_t::number_float:
      return real(json.get<double>());
    case Json::value_t::string:
      return string(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) {
        ACCORD_ASSIGN_OR_RETURN(Value value, from_json(item));
        items.push_back(std::move(value));
      }
      return list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<std::string, Value>> members;
      for (const auto& [key, item] : json.items()) {
        ACCORD_ASSIGN_OR_RETURN(Value value, from_json(item));
        members.emplace_back(key, std::move(value));
      }
      return dict(std::move(members));
    }
    default:
      return data_error("a template cannot be given {}", kind_of(json));
  }
}

const std::string& Value::undefined_name() const {
  static const std::string kNothing;
  const auto& name = std::get<Undefined>(data_).name;
  return name == nullptr ? kNothing : *name;
}

int64_t Value::as_integer() const { return is(Kind::kBool) ? int64_t{as_bool()} : std::get<int64_t>(data_); }

double Value::as_number() const { return is(Kind::kFloat) ? as_real() : static_cast<double>(as_integer()); }

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "none";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return value.as_list().shape == Shape::kTuple ? "tuple" : "list";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return "object";
  }
  return "?";
}

Status undefined_error(const Value& value) {
  return data_error("'{}' is undefined", printable(value.undefined_name()));
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_integer() != 0;
    case Kind::kFloat:
      return value.as_real() != 0.0;
    case Kind::kString:
      return !value.as_string().empty();
    case Kind::kList:
      return value.as_list().shape == Shape::kIterator || !value.as_list().items.empty();
    case Kind::kDict:
      return !value.as_dict().members.empty();
    case Kind::kObject:
      return true;
  }
  return false;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const bool exact = !a.is(Kind::kFloat) && !b.is(Kind::kFloat);
    return exact ? a.as_integer() == b.as_integer() : a.as_number() == b.as_number();
  }
  if (a.kind() != b.kind()) {
    return false;
  }
  switch (a.kind()) {
    case Kind::kString:
      return a.as_string() == b.as_string();
    case Kind::kList:
      return a.as_list().shape == b.as_list().shape &&
             std::equal(a.as_list().items.begin(), a.as_list().items.end(), b.as_list().items.begin(),
                        b.as_list().items.end(), equal);
    case Kind::kDict: {
      const Dict& left = a.as_dict();
      return left.members.size() == b.as_dict().members.size() &&
             std::all_of(left.members.begin(), left.members.end(), [&](const auto& member) {
               const Value* other = b.as_dict().find(member.first);
               return other != nullptr && equal(member.second, *other);
             });
    }
    case Kind::kObject:
      return a.as_object() == b.as_object();
    default:
      return true;  // undefined, none
  }
}

StatusOr<int> compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) {
      return a.as_integer() < b.as_integer() ? -1 : int{a.as_integer() > b.as_integer()};
    }
    if (std::isnan(a.as_number()) || std::isnan(b.as_number())) {
      return data_error("a number that is not a number (NaN) cannot be ordered");
    }
    return a.as_number() < b.as_number() ? -1 : int{a.as_number() > b.as_number()};
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    return a.as_string().compare(b.as_string());  // UTF-8 sorts as its code points do
  }
  if (a.is(Kind::kList) && b.is(Kind::kList) && a.as_list().shape == b.as_list().shape) {
    const std::vector<Value>& left = a.as_list().items;
    const std::vector<Value>& right = b.as_list().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) {
        return compare(left[i], right[i]);
      }
    }
    return left.size() < right.size() ? -1 : int{left.size() > right.size()};
  }
  for (const Value* value : {&a, &b}) {
    if (value->is(Kind::kUndefined)) {
      return undefined_error(*value);
    }
  }
  return data_error("a {} and a {} have no order", type_name(a), type_name(b));
}

StatusOr<bool> contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is(Kind::kString)) {
        return data_error("'in' looks for a str in a str, not for a {}", type_name(item));
      }
      return container.as_string().find(item.as_string()) != std::string::npos;
    case Kind::kList: {
      const std::vector<Value>& items = container.as_list().items;
      return std::any_of(items.begin(), items.end(), [&](const Value& each) { return equal(each, item); });
    }
    case Kind::kDict:
      return item.is(Kind::kString) && container.as_dict().find(item.as_string()) != nullptr;
    default:
      return data_error("'in' needs a list, dict or str, not a {}", type_name(container));
  }
}

StatusOr<int64_t> length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString: {
      const std::string& text = value.as_string();
      return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    }
    case Kind::kList:
      if (value.as_list().shape == Shape::kIterator) {
        return data_error("the result of a filter such as map has no length; turn it into a list first");
      }
      return static_cast<int64_t>(value.as_list().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as_dict().members.size());
    default:
      return data_error("a {} has no length", type_name(value));
  }
}

StatusOr<std::vector<Value>> iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
      return value.as_list().items;
    case Kind::kDict:
      for (const auto& member : value.as_dict().members) {
        ACCORD_ASSIGN_OR_RETURN(Value key, Value::string(member.first));
        items.push_back(std::move(key));
      }
      return items;
    case Kind::kString: {
      const std::string& text = value.as_string();
      for (size_t at = 0; at < text.size();) {
        const size_t size = next_utf8(text, at).length;
        ACCORD_ASSIGN_OR_RETURN(Value character, Value::string(text.substr(at, size)));
        items.push_back(std::move(character));
        at += size;
        ACCORD_RETURN_IF_ERROR(check_size(items.size(), 1));
      }
      return items;
    }
    default:
      return data_error("a {} cannot be iterated", type_name(value));
  }
}

}  // namespace accord::text::jinja
