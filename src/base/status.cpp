#include "base/status.hpp"

#include <absl/strings/cord.h>

#include <string>

namespace accord {
namespace {

constexpr char kExitCodeUrl[] = "accord/exit-code";

// Debian's absl has a string_view of its own; it converts from char pointers only.
absl::string_view to_absl(std::string_view s) { return {s.data(), s.size()}; }

absl::StatusCode canonical_code(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
      return absl::StatusCode::kOk;
    case ExitCode::kUsage:
    case ExitCode::kBadRecipe:
    case ExitCode::kBadData:
      return absl::StatusCode::kInvalidArgument;
    case ExitCode::kUnavailable:
    case ExitCode::kWorkerLost:
    case ExitCode::kDrained:
      return absl::StatusCode::kUnavailable;
    case ExitCode::kRunLocked:
      return absl::StatusCode::kFailedPrecondition;
    case ExitCode::kAuth:
      return absl::StatusCode::kPermissionDenied;
    case ExitCode::kIo:
    case ExitCode::kInternal:
      return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kInternal;
}

}  // namespace

Status make_error(ExitCode code, std::string_view message) {
  return make_error(canonical_code(code), code, message);
}

Status make_error(absl::StatusCode canonical, ExitCode code, std::string_view message) {
  Status status(canonical, to_absl(message));
  status.SetPayload(kExitCodeUrl, absl::Cord(std::to_string(static_cast<int>(code))));
  return status;
}

std::string_view message_of(const Status& status) {
  return {status.message().data(), status.message().size()};
}

ExitCode exit_code(const Status& status) {
  if (status.ok()) {
    return ExitCode::kOk;
  }
  const auto payload = status.GetPayload(kExitCodeUrl);
  return payload ? static_cast<ExitCode>(std::stoi(std::string(*payload))) : ExitCode::kInternal;
}

Status annotate(const Status& status, std::string_view context) {
  if (status.ok()) {
    return status;
  }
  Status annotated(status.code(), fmt::format("{}: {}", context, message_of(status)));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

}  // namespace accord
