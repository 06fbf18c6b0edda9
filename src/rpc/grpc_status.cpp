#include "rpc/grpc_status.hpp"

#include <charconv>
#include <string>

namespace accord::rpc {

grpc::Status to_grpc(const Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  return {static_cast<grpc::StatusCode>(status.code()), std::string(message_of(status)),
          std::to_string(static_cast<int>(exit_code(status)))};
}

Status from_grpc(const grpc::Status& status, const std::string& call, const std::string& deadline_key) {
  if (status.ok()) {
    return absl::OkStatus();
  }
  int code = 0;
  const std::string& details = status.error_details();
  const auto parsed = std::from_chars(details.data(), details.data() + details.size(), code);
  if (parsed.ec == std::errc() && code > 0) {
    return make_error(static_cast<ExitCode>(code), fmt::format("{}: {}", call, status.error_message()));
  }
  // Not an answer of the other side: the transport failed.
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return unavailable_error(
          "{}: no answer within its deadline ({}); is the worker stopped or overloaded? Its log says how far "
          "it "
          "came; if it only needs longer, raise {}",
          call, status.error_message(), deadline_key);
    case grpc::StatusCode::CANCELLED:
      return unavailable_error("{}: cancelled", call);
    default:
      return unavailable_error("{}: {}", call, status.error_message());
  }
}

}  // namespace accord::rpc
