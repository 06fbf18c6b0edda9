#pragma once
// The weight transaction's channel over a communicator. Trainers are the first ranks and the senders; trainer
// 0 leads.
#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {

// `communicator` must outlive the channel; `deadline` bounds every call made through it.
weights::UpdateChannel make_update_channel(Communicator& communicator, Deadline deadline);

}  // namespace accord::controller
