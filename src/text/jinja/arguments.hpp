#pragma once
// What a filter, test, method or function is called with.
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.hpp"

namespace accord::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Refuses arguments beyond `names`, unknown names and an argument that is given twice.
  Status accept(std::string_view function, std::initializer_list<std::string_view> names) const;

  // The argument at `index`, or by its name; null where it is not given.
  const Value* find(size_t index, std::string_view name) const;

  // The same of one type; `missing` where it is not given. Another type is an error.
  StatusOr<int64_t> integer(size_t index, std::string_view name, int64_t missing) const;
  StatusOr<bool> flag(size_t index, std::string_view name, bool missing) const;
  StatusOr<std::string> text(size_t index, std::string_view name, std::string_view missing) const;
};

}  // namespace accord::text::jinja
