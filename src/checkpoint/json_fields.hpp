#pragma once
// Typed, bounded access to the members of a JSON object from a file. The first error is kept, so that a
// parser reads straight through and asks once at the end.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/strict_json.hpp"

namespace accord::checkpoint {

class JsonFields {
 public:
  // `where` is named in errors: a path, or a path and a key.
  JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // The value, or nullptr when absent or null.
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  int64_t integer(std::string_view key, int64_t low, int64_t high);                    // required
  int64_t integer(std::string_view key, int64_t low, int64_t high, int64_t fallback);  // when absent or null
  double number(std::string_view key);
  double number(std::string_view key, double fallback);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);

  // Records an error about `key`: "<where>: <key> <what>".
  void fail(std::string_view key, std::string_view what);
  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
  Status status_;
};

}  // namespace accord::checkpoint
