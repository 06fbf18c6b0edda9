#pragma once
// The weight transaction's channel over a communicator. Trainer 0 is rank 0 and the sender.
#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {

inline constexpr int kSenderRank = 0;

// `communicator` must outlive the channel; `deadline` bounds every call made through it.
weights::UpdateChannel make_update_channel(Communicator& communicator, Deadline deadline);

}  // namespace accord::controller
