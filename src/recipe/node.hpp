#pragma once
// A recipe file as a tree with positions. yaml-cpp's events build it; anything that could surprise a reader
// (aliases, tags, several documents) is refused here, duplicate keys are kept for the schema to report.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.hpp"

namespace accord::recipe {

inline constexpr int64_t kMaxRecipeBytes = int64_t{1} << 20;
inline constexpr size_t kMaxDepth = 32;
inline constexpr size_t kMaxNodes = 100000;

// Where a value was written: source 0 is the file, source i the i-th override.
struct Location {
  int32_t source = 0;
  int32_t line = 1;  // from 1
  int32_t column = 1;
  auto operator<=>(const Location&) const = default;  // NOLINT: its 0 is no pointer
};

struct Node {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMapping };
  struct Entry;

  Kind kind = Kind::kNull;
  Location location;
  std::string text;  // of a scalar
  bool quoted = false;
  std::vector<Node> items;     // of a sequence
  std::vector<Entry> entries;  // of a mapping, duplicates included

  Node* find(std::string_view key);
  std::string_view kind_name() const;  // "a list", for messages
};

struct Node::Entry {
  std::string key;
  Location location;
  Node value;
};

// Parses one YAML document. On failure returns the position and the rule in `location` and the status (whose
// message has no position yet).
StatusOr<Node> parse_yaml(std::string_view text, int32_t source, Location& location);

// Puts the value of "a.b.c=value" into the tree; numbers in the path are positions in lists. The status has
// no position: the override itself is the position.
Status apply_override(Node& root, std::string_view override_text, int32_t source);

}  // namespace accord::recipe
