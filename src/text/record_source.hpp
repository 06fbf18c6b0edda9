#pragma once
// The records of a data file, one after the other. Only .cpp files include this header.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"

namespace accord::text {

struct SourceRecord {
  uint64_t index = 0;   // within the whole file, from 0
  int64_t number = 0;   // line of a JSONL file, row of a Parquet file; from 1
  std::string place;    // "file:number", for messages
  StatusOr<Json> json;  // an object, or why there is none
};

using RecordVisitor = std::function<Status(SourceRecord&)>;

// Calls `visit` for each record of `path`, which may name a part: "file@[a:b]". Only members that `keys`
// names (by a dotted path: its first part) need to be there; a Parquet file's other columns are read only
// with `all`. Stops at the first error. No records is an error.
Status for_each_record(const std::string& path, const std::vector<std::string>& keys, bool all,
                       const RecordVisitor& visit);

// The same for JSONL in memory; `path` stands for the file.
Status for_each_jsonl_record(std::string_view content, const std::string& path, const RecordVisitor& visit);

}  // namespace accord::text
