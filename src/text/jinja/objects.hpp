#pragma once
// What a template makes beside plain values. The interpreter owns them until the rendering ends.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.hpp"
#include "text/jinja/value.hpp"

namespace accord::text::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;
};

struct Object {
  enum class Kind : uint8_t { kNamespace, kMacro, kLoop, kFunction, kMethod };
  explicit Object(Kind which) : kind(which) {}
  virtual ~Object() = default;
  const Kind kind;
};

struct Namespace : Object {
  Namespace() : Object(Kind::kNamespace) {}
  std::vector<std::pair<std::string, Value>> members;
};

struct Macro : Object {
  Macro(const Statement& which, Scope* where) : Object(Kind::kMacro), definition(which), scope(where) {}
  const Statement& definition;
  Scope* scope;  // where it was defined
};

struct Loop : Object {
  Loop() : Object(Kind::kLoop) {}
  std::vector<Value> items;
  size_t index = 0;
  int64_t depth = 1;
};

struct Function : Object {
  explicit Function(std::string_view which) : Object(Kind::kFunction), name(which) {}
  std::string name;
};

struct Method : Object {
  Method(Value of, std::string_view which) : Object(Kind::kMethod), receiver(std::move(of)), name(which) {}
  Value receiver;
  std::string name;
};

}  // namespace accord::text::jinja
