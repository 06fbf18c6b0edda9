#pragma once
// NCCL's functions between threads or processes of one machine, over host memory or emulated devices and Unix
// sockets. What NCCL does in the background happens in comm_get_async_error: the state is "in progress" until
// the peers have come. As with NCCL, nobody notices that a peer has left.
#include <cstdint>

#include "comm/nccl_api.hpp"

namespace accord::testing {

// What goes wrong in this process, on every communicator, until it is set anew.
struct NcclFaults {
  bool no_id = false;
  int stay_away = -1;    // this rank never arrives at the rendezvous, though it asked
  int error_on = -1;     // this rank's communicator reports an error after the rendezvous
  int64_t corrupt = -1;  // the message with this number, of all that are sent, has its first byte changed
};

comm::NcclApi fake_nccl();
void set_faults(const NcclFaults& faults);  // and counts from 0 again
int aborted();                              // communicators, since set_faults
int destroyed();

}  // namespace accord::testing
