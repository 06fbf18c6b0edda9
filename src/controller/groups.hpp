#pragma once
// A worker's way into a communicator group.
#include <memory>

#include "base/communicator.hpp"
#include "comm/store.hpp"
#include "controller/worker.hpp"

namespace accord::controller {

// Meets the other members through `store`. Errors: kUnavailable, kDeadlineExceeded.
StatusOr<std::unique_ptr<Communicator>> join_group(const GroupJob& job, comm::Store& store);

}  // namespace accord::controller
