#include "text/record_source.hpp"

#include <utility>

#include "base/files.hpp"
#include "text/data_path.hpp"
#include "text/parquet.hpp"
#include "text/records.hpp"

namespace accord::text {
namespace {

StatusOr<Json> parse_record(std::string_view line) {
  ACCORD_ASSIGN_OR_RETURN(Json json, parse_json(line));
  if (!json.is_object()) {
    return data_error("a record must be an object, not {}", kind_of(json));
  }
  return json;
}

}  // namespace

Status for_each_jsonl_record(std::string_view content, const std::string& path, const RecordVisitor& visit) {
  ACCORD_ASSIGN_OR_RETURN(const DataPath data, parse_data_path(path));
  int64_t total = 0;
  ACCORD_RETURN_IF_ERROR(for_each_line(content, [&](const Line&) {
    ++total;
    return absl::OkStatus();
  }));
  if (total == 0) {
    return data_error("{}: has no records; it needs one JSON object per line", data.file);
  }
  ACCORD_ASSIGN_OR_RETURN(const auto part, data.part_of(total));
  return for_each_line(content, [&](const Line& line) -> Status {
    const auto index = static_cast<int64_t>(line.record);
    if (index < part.first || index >= part.second) {
      return absl::OkStatus();
    }
    SourceRecord record{line.record, line.number, fmt::format("{}:{}", data.file, line.number),
                        parse_record(line.text)};
    return visit(record);
  });
}

Status for_each_record(const std::string& path, const std::vector<std::string>& keys, bool all,
                       const RecordVisitor& visit) {
  ACCORD_ASSIGN_OR_RETURN(const DataPath data, parse_data_path(path));
  if (data.is_parquet()) {
    return for_each_parquet_record(data, keys, all, visit);
  }
  ACCORD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(data.file));
  return for_each_jsonl_record({reinterpret_cast<const char*>(file.data()), file.size()}, path, visit);
}

}  // namespace accord::text
