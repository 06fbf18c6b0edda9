#include "controller/recorded_run.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace accord::controller {
namespace {

using nlohmann::json;

// The last line that begins with `prefix`: lines can be megabytes, so the others are not parsed.
StatusOr<json> last_line(const std::string& path, const std::string& prefix, const std::string& what) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return io_error("{}: cannot read: {}", path, std::strerror(errno));
  }
  std::string found;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(prefix)) {
      found = std::move(line);
    }
  }
  if (in.bad()) {
    return io_error("{}: cannot read: {}", path, std::strerror(errno));
  }
  if (found.empty()) {
    return data_error("{}: has no line of {}", path, what);
  }
  json parsed = json::parse(found, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return data_error("{}: the line of {} is not a JSON object", path, what);
  }
  return parsed;
}

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<double> number_of(const json& value) {
  if (value.is_number()) {
    return value.get<double>();
  }
  if (value == "NaN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (value == "Infinity" || value == "-Infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    return value == "Infinity" ? infinity : -infinity;
  }
  return std::nullopt;
}

}  // namespace

StatusOr<RecordedVersion> read_ledger_version(const std::string& path, uint64_t version) {
  const std::string what = fmt::format("version {}", version);
  // Step and version are equal (docs/interfaces.md).
  ACCORD_ASSIGN_OR_RETURN(
      const json line, last_line(path, fmt::format("{{\"step\":{},\"version\":{},", version, version), what));
  RecordedVersion out;
  out.version = version;
  out.plan_digest = text_of(line, "plan");
  out.manifest_digest = text_of(line, "manifest");
  out.build = text_of(line, "build");
  const auto tensors = line.find("tensors");
  if (tensors == line.end() || !tensors->is_array()) {
    return data_error("{}: the record of {} lists no tensors", path, what);
  }
  for (const json& tensor : *tensors) {
    out.tensors.push_back({text_of(tensor, "name"), text_of(tensor, "digest")});
  }
  return out;
}

StatusOr<Metrics> read_step_metrics(const std::string& path, uint64_t step) {
  const std::string what = fmt::format("step {}", step);
  ACCORD_ASSIGN_OR_RETURN(const json line, last_line(path, fmt::format("{{\"step\":{},", step), what));
  Metrics metrics;
  for (const auto& [name, value] : line.items()) {
    const std::optional<double> number = number_of(value);
    if (!number) {
      return data_error("{}: {}: {} is no number", path, what, name);
    }
    if (name != "step") {
      metrics[name] = *number;
    }
  }
  return metrics;
}

}  // namespace accord::controller
