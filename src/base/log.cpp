#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
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

// spdlog keeps its own registry; this is the one logger of the process.
std::shared_ptr<spdlog::logger> logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created =
        std::make_shared<spdlog::logger>("accord", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%H:%M:%S.%e %^%-5l%$ %v");
    created->flush_on(spdlog::level::info);
    return created;
  }();
  return instance;
}

}  // namespace

void set_level(Level level) { logger()->set_level(spdlog_level(level)); }

void set_identity(std::string_view name) {
  logger()->set_pattern(fmt::format("%H:%M:%S.%e %^%-5l%$ [{}] %v", name));
}

Status add_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    logger()->sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& e) {
    return io_error("{}: cannot open the log file: {}", path, e.what());
  }
  return absl::OkStatus();
}

void write(Level level, std::string_view message) {
  logger()->log(spdlog_level(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace accord::log
