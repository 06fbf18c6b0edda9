#pragma once
// Which transport carries device memory between the ranks of a group.
#include <memory>
#include <string>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "comm/gloo_communicator.hpp"
#include "comm/nccl_api.hpp"
#include "comm/store.hpp"
#include "device/device.hpp"

namespace accord::comm {

// NCCL where every rank is on a CUDA device of its own and has NCCL, else `host` as it is: the same
// everywhere. Says which and why in the log. Collective over `host`, whose group's name `group` is. Errors:
// as NcclCommunicator::create's.
StatusOr<std::unique_ptr<Communicator>> connect_devices(const std::string& group, const Device& device,
                                                        const StatusOr<NcclApi>& nccl,
                                                        std::unique_ptr<GlooCommunicator> host, Store& store,
                                                        Deadline deadline);

}  // namespace accord::comm
