#pragma once
// absl::Status <-> grpc::Status. The exit code travels in the error details.
#include <grpcpp/support/status.h>

#include "base/status.hpp"

namespace accord::rpc {

grpc::Status to_grpc(const Status& status);

// `call` names what was asked of whom ("Train on trainer/0"); it starts the message.
Status from_grpc(const grpc::Status& status, const std::string& call);

}  // namespace accord::rpc
