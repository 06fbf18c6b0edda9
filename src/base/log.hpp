#pragma once
// Logging facade: spdlog stays inside log.cpp. Everything goes to stderr, and to a file once one is set.
// Levels: debug (per-batch detail), info (phases and progress), warn (a user should look), error (the run
// ends).
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace accord::log {

enum class Level { kDebug, kInfo, kWarn, kError };

void set_level(Level level);
void set_identity(std::string_view name);  // shown on each line: controller, rollout/0, trainer/0
Status add_file(const std::string& path);  // append to this file as well
void write(Level level, std::string_view message);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace accord::log
