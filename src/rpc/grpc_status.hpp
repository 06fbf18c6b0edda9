#pragma once
// absl::Status <-> grpc::Status. The exit code travels in the error details.
#include <grpcpp/support/status.h>

#include "base/status.hpp"

namespace accord::rpc {

grpc::Status to_grpc(const Status& status);

// `call` names what was asked of whom ("Train on trainer/0"); it starts the message.
// `deadline_key` is the recipe key that a missed deadline asks to raise.
Status from_grpc(const grpc::Status& status, const std::string& call,
                 const std::string& deadline_key = "the deadlines of the recipe");

}  // namespace accord::rpc
