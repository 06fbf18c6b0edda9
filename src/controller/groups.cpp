#include "controller/groups.hpp"

#include "comm/gloo_communicator.hpp"

namespace accord::controller {

StatusOr<std::unique_ptr<Communicator>> join_group(const GroupJob& job, comm::Store& store) {
  comm::GlooOptions options;
  options.group = job.group;
  options.rank = job.rank;
  options.size = job.size;
  return comm::GlooCommunicator::create(options, store, Deadline::after(job.timeout));
}

}  // namespace accord::controller
