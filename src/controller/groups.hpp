#pragma once
// A worker's way into a communicator group.
#include <memory>

#include "base/communicator.hpp"
#include "comm/store.hpp"
#include "controller/worker.hpp"
#include "device/device.hpp"

namespace accord::controller {

// Meets the other members through `store`. With a CUDA `device` (all members have one) the group has device
// collectives where NCCL can connect them. Errors: kUnavailable, kDeadlineExceeded.
StatusOr<std::unique_ptr<Communicator>> join_group(const GroupJob& job, comm::Store& store,
                                                   const Device& device);

}  // namespace accord::controller
