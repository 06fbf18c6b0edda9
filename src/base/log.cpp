#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace accord::log {
namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// The one logger of the process; spdlog keeps its own registry. A logger's list of sinks has no lock, and a
// file is added while other threads write (the controller serves before it has its run directory): the one
// sink in that list holds the others under a lock.
struct Output {
  std::shared_ptr<spdlog::sinks::dist_sink_mt> sinks;
  std::shared_ptr<spdlog::logger> logger;
};

const Output& output() {
  static const Output instance = [] {
    Output created;
    created.sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
    created.sinks->add_sink(std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created.logger = std::make_shared<spdlog::logger>("accord", created.sinks);
    created.logger->set_pattern("%H:%M:%S.%e %^%-5l%$ %v");
    created.logger->flush_on(spdlog::level::info);
    return created;
  }();
  return instance;
}

}  // namespace

void set_level(Level level) { output().logger->set_level(spdlog_level(level)); }

void set_identity(std::string_view name) {
  output().logger->set_pattern(fmt::format("%H:%M:%S.%e %^%-5l%$ [{}] %v", name));
}

Status add_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    output().sinks->add_sink(std::move(sink));
  } catch (const spdlog::spdlog_ex& e) {
    return io_error("{}: cannot open the log file: {}", path, e.what());
  }
  return absl::OkStatus();
}

void write(Level level, std::string_view message) {
  output().logger->log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace accord::log
