#pragma once
// Errors are values. A Status carries the exit code that the process ends with when nobody handles it.
// A message names the file, line or tensor, the rule that was broken, and what to do about it.
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace accord {

using absl::Status;
using absl::StatusOr;

// sysexits.h where it has a fitting code; docs/interfaces.md lists them for users.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 64,
  kBadData = 65,
  kUnavailable = 69,
  kInternal = 70,
  kWorkerLost = 71,
  kRunLocked = 73,
  kIo = 74,
  kDrained = 75,
  kAuth = 77,
  kBadRecipe = 78,
};

Status make_error(ExitCode code, std::string_view message);
// The same with a canonical code of its own, for errors that callers tell apart (kDeadlineExceeded, ...).
Status make_error(absl::StatusCode canonical, ExitCode code, std::string_view message);
std::string_view message_of(const Status& status);  // without the code's name, as users should read it
ExitCode exit_code(const Status& status);           // kInternal where the status carries none

// The same error with "context: " before its message; the exit code stays.
Status annotate(const Status& status, std::string_view context);

template <class... Args>
Status usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ExitCode::kUsage, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Status data_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ExitCode::kBadData, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Status recipe_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ExitCode::kBadRecipe, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Status io_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ExitCode::kIo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Status unavailable_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ExitCode::kUnavailable, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Status internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ExitCode::kInternal, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace accord

#define ACCORD_CONCAT_INNER(a, b) a##b
#define ACCORD_CONCAT(a, b) ACCORD_CONCAT_INNER(a, b)

#define ACCORD_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (::absl::Status accord_status = (expr); !accord_status.ok()) { \
      return accord_status;                                           \
    }                                                                 \
  } while (false)

// ACCORD_ASSIGN_OR_RETURN(auto value, compute());
#define ACCORD_ASSIGN_OR_RETURN(lhs, expr) \
  ACCORD_ASSIGN_OR_RETURN_INNER(ACCORD_CONCAT(accord_result_, __LINE__), lhs, expr)
#define ACCORD_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                  \
  if (!result.ok()) {                                    \
    return result.status();                              \
  }                                                      \
  lhs = std::move(result).value()
