#include "controller/update_channel.hpp"

#include <algorithm>
#include <vector>

namespace accord::controller {

weights::UpdateChannel make_update_channel(Communicator& communicator, Deadline deadline) {
  weights::UpdateChannel channel;
  channel.rank = communicator.rank();
  channel.broadcast = [&communicator, deadline](void* data, int64_t bytes, int32_t root) {
    return communicator.broadcast(data, bytes, root, deadline);
  };
  channel.agree = [&communicator, deadline](weights::Vote vote) -> StatusOr<weights::Vote> {
    const auto mine = static_cast<int32_t>(vote);
    std::vector<int32_t> votes(static_cast<size_t>(communicator.size()));
    ACCORD_RETURN_IF_ERROR(communicator.all_gather(&mine, sizeof(mine), votes.data(), deadline));
    return static_cast<weights::Vote>(*std::max_element(votes.begin(), votes.end()));
  };
  return channel;
}

}  // namespace accord::controller
