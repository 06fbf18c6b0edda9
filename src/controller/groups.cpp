#include "controller/groups.hpp"

#include <utility>

#include "comm/device_group.hpp"
#include "comm/gloo_communicator.hpp"
#include "comm/nccl_api.hpp"

namespace accord::controller {

StatusOr<std::unique_ptr<Communicator>> join_group(const GroupJob& job, comm::Store& store,
                                                   const Device& device) {
  const Deadline deadline = Deadline::after(job.timeout);
  comm::GlooOptions options;
  options.group = job.group;
  options.rank = job.rank;
  options.size = job.size;
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<comm::GlooCommunicator> host,
                          comm::GlooCommunicator::create(options, store, deadline));
  if (!device.is_cuda() || job.size == 1) {
    return std::unique_ptr<Communicator>(std::move(host));
  }
  return comm::connect_devices(job.group, device, comm::nccl_of_this_build(), std::move(host), store,
                               deadline);
}

}  // namespace accord::controller
