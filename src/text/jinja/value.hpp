#pragma once
// Values of a template while it renders, with the meaning that Python gives them: lists, tuples, texts
// counted in code points, integers apart from floats. Lists, dictionaries and texts never change once made.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"

namespace accord::text::jinja {

inline constexpr size_t kMaxText = size_t{1} << 24;   // bytes of one text
inline constexpr size_t kMaxItems = size_t{1} << 20;  // of one list or dictionary
inline constexpr int kMaxNesting = 100;               // lists within lists

class Value;
struct Object;  // namespaces, macros, loops, functions: owned by the interpreter (objects.hpp)

enum class Shape : uint8_t {
  kList,
  kTuple,
  kView,      // keys(), values() and items() of a dictionary: no index
  kIterator,  // of filters such as map: neither index nor length
};

struct List {
  std::vector<Value> items;
  Shape shape = Shape::kList;
  int nesting = 1;
};

struct Dict {
  std::vector<std::pair<std::string, Value>> members;  // in the order of insertion
  int nesting = 1;
  const Value* find(std::string_view key) const;
};

class Value {
 public:
  enum class Kind : uint8_t { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kObject };

  Value() = default;  // undefined
  static Value undefined(std::string name);
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(int64_t value) { return Value(Data(value)); }
  static Value real(double value) { return Value(Data(value)); }
  static Value object(Object* value) { return Value(Data(value)); }
  // Errors: more than kMaxText bytes, kMaxItems items, kMaxNesting levels.
  static StatusOr<Value> string(std::string value);
  static StatusOr<Value> list(std::vector<Value> items, Shape shape = Shape::kList);
  static StatusOr<Value> dict(std::vector<std::pair<std::string, Value>> members);
  static StatusOr<Value> from_json(const Json& json);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_number() const { return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat); }

  // Each requires its kind.
  bool as_bool() const { return std::get<bool>(data_); }
  double as_real() const { return std::get<double>(data_); }
  const std::string& as_string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Object* as_object() const { return std::get<Object*>(data_); }
  const std::string& undefined_name() const;

  int64_t as_integer() const;  // kBool or kInt
  double as_number() const;    // is_number()

 private:
  struct Undefined {
    std::shared_ptr<const std::string> name;
  };
  struct None {};
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>, Object*>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

std::string_view type_name(const Value& value);  // as Python calls it
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
StatusOr<int> compare(const Value& a, const Value& b);  // negative, 0, positive; two numbers, texts or lists
StatusOr<bool> contains(const Value& container, const Value& item);
StatusOr<int64_t> length(const Value& value);
StatusOr<std::vector<Value>> iterate(const Value& value);  // of a dictionary: its keys; of a text: characters

StatusOr<std::string> to_text(const Value& value);  // str()
StatusOr<std::string> to_repr(const Value& value);  // repr()

struct JsonStyle {
  bool ensure_ascii = false;
  int indent = -1;  // -1: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
StatusOr<std::string> to_json(const Value& value, const JsonStyle& style);  // json.dumps()

// What a use of an undefined value is told.
Status undefined_error(const Value& value);

}  // namespace accord::text::jinja
