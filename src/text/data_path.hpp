#pragma once
// "file" or "file@[a:b]": a data file, and which of its records are meant.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace accord::text {

struct DataPath {
  std::string file;
  std::optional<int64_t> begin;  // as Python's slices: from the end where negative
  std::optional<int64_t> end;

  bool is_slice() const { return begin.has_value() || end.has_value(); }
  bool is_parquet() const { return file.ends_with(".parquet"); }
  // [first, last) of `total` records. An empty part is a data error.
  StatusOr<std::pair<int64_t, int64_t>> part_of(int64_t total) const;
};

// A part that is not [a:b], with whole numbers or nothing on both sides, is a recipe error.
StatusOr<DataPath> parse_data_path(std::string_view path);

}  // namespace accord::text
