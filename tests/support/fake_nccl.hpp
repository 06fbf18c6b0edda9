#pragma once
// NCCL's functions between threads of one process, over host memory or emulated devices. What NCCL would do
// in the background happens in comm_get_async_error: until the peers have come the state is "in progress".
#include <string>

#include "comm/nccl_api.hpp"

namespace accord::testing {

// What goes wrong, on every communicator until reset.
struct NcclFaults {
  bool no_id = false;
  int stay_away = -1;    // this rank never arrives at the rendezvous, though it asked
  int error_on = -1;     // this rank's communicator reports an error after the rendezvous
  int64_t corrupt = -1;  // the message with this number (of all that are sent) has its first byte changed
};

comm::NcclApi fake_nccl();
void set_faults(const NcclFaults& faults);  // and forgets all messages and counts
int aborted();                              // communicators, since set_faults
int destroyed();

}  // namespace accord::testing
