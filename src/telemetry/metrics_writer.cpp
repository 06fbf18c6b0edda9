#include "telemetry/metrics_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_text.hpp"
#include "base/log.hpp"

namespace accord::telemetry {
namespace {

std::optional<int64_t> step_of(const std::string& line) {
  const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return std::nullopt;
  }
  const auto step = parsed.find("step");
  if (step == parsed.end() || !step->is_number_integer()) {
    return std::nullopt;
  }
  return step->get<int64_t>();
}

struct Kept {
  std::string text;
  int64_t last_step = -1;
  int64_t num_beyond = 0;
  int64_t num_broken = 0;
};

StatusOr<Kept> lines_up_to(const std::string& path, int64_t last_step) {
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return io_error("{}: cannot read: {}", path, std::strerror(errno));
  }
  std::string line;
  while (std::getline(in, line)) {
    // A last line without its newline was cut off, even if what is there happens to be an object.
    const bool whole = !in.eof();
    const std::optional<int64_t> step = whole ? step_of(line) : std::nullopt;
    if (!step) {
      ++kept.num_broken;
    } else if (*step > last_step) {
      ++kept.num_beyond;
    } else {
      kept.text += line;
      kept.text += '\n';
      kept.last_step = *step;
    }
  }
  if (in.bad()) {
    return io_error("{}: cannot read: {}", path, std::strerror(errno));
  }
  return kept;
}

}  // namespace

StatusOr<std::string> format_metrics_line(int64_t step, const Metrics& metrics) {
  std::string line = fmt::format("{{\"step\":{}", step);
  for (const auto& [name, value] : metrics) {
    if (name == "step") {
      return internal_error("a metric may not be called 'step': that key holds the step's number");
    }
    line += ',';
    line += json_string(name);
    line += ':';
    line += json_number(value);
  }
  line += '}';
  return line;
}

StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::open(const std::string& path, int64_t last_step) {
  int64_t newest = -1;
  if (::access(path.c_str(), F_OK) == 0) {
    ACCORD_ASSIGN_OR_RETURN(const Kept kept, lines_up_to(path, last_step));
    newest = kept.last_step;
    if (kept.num_beyond > 0 || kept.num_broken > 0) {
      ACCORD_RETURN_IF_ERROR(write_file_atomic(path, kept.text));
    }
    if (kept.num_beyond > 0) {
      log::info("{}: dropped {} lines of steps after {}, which will be written again", path, kept.num_beyond,
                last_step);
    }
    if (kept.num_broken > 0) {
      log::warn("{}: dropped {} lines that are no metrics (cut off by a crash?)", path, kept.num_broken);
    }
  }
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return io_error("{}: cannot open to append: {}", path, std::strerror(errno));
  }
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(path, std::move(fd), newest));
}

MetricsWriter::MetricsWriter(std::string path, FileDescriptor fd, int64_t last_step)
    : path_(std::move(path)), fd_(std::move(fd)), last_step_(last_step) {}

Status MetricsWriter::write(int64_t step, const Metrics& metrics) {
  if (step <= last_step_) {
    return internal_error("{}: step {} is written after step {}: steps must ascend", path_, step, last_step_);
  }
  ACCORD_ASSIGN_OR_RETURN(std::string line, format_metrics_line(step, metrics));
  line += '\n';
  ACCORD_RETURN_IF_ERROR(write_fully(fd_.get(), path_, line));
  last_step_ = step;
  return absl::OkStatus();
}

}  // namespace accord::telemetry
