#include "checkpoint/strict_json.hpp"

#include "base/files.hpp"

namespace accord::checkpoint {

StatusOr<Json> parse_json(std::string_view text, std::string_view file) {
  StatusOr<Json> value = accord::parse_json(text);
  return value.ok() ? std::move(value) : annotate(value.status(), file);
}

StatusOr<Json> read_json_object(const std::string& path, int64_t max_bytes) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, max_bytes));
  ACCORD_ASSIGN_OR_RETURN(Json value, parse_json(text, path));
  if (!value.is_object()) {
    return data_error("{}: must hold one JSON object, not {}", path, value.type_name());
  }
  return value;
}

}  // namespace accord::checkpoint
