#pragma once
// Collectives over a fixed group of ranks. Every rank makes the same calls in the same order with the same
// sizes; one call at a time per communicator. Results do not depend on timing.
//
// Every call ends by its deadline. A failed call (a lost peer, an expired deadline) breaks the communicator:
// its connections close, so that the peers fail too instead of waiting, and later calls return the first
// error. A new group is made for the next epoch. Errors: kUnavailable, kDeadlineExceeded (exit code 69); the
// message names group, operation, rank and peer.
#include <cstdint>
#include <span>

#include "base/deadline.hpp"
#include "base/status.hpp"

namespace accord {

class DeviceCollectives;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `data` of `root` to everybody.
  virtual Status broadcast(void* data, int64_t bytes, int root, Deadline deadline) = 0;

  // data[i] = ((x0[i] + x1[i]) + x2[i]) + ... over the ranks in ascending order, fp32, the same bits
  // everywhere.
  virtual Status all_reduce_sum(float* data, int64_t count, Deadline deadline) = 0;

  // out[r*bytes ...] = the `bytes` bytes at `in` of rank r.
  virtual Status all_gather(const void* in, int64_t bytes, void* out, Deadline deadline) = 0;

  // A block to every rank and one from every rank: in_bytes[r] bytes of `in` go to rank r, out_bytes[r] bytes
  // come from rank r (its in_bytes of this rank). Blocks lie one after the other in rank order; sizes may
  // differ and be zero. `in` and `out` do not overlap.
  virtual Status all_to_all(const void* in, std::span<const int64_t> in_bytes, void* out,
                            std::span<const int64_t> out_bytes, Deadline deadline) = 0;

  // Returns when every rank has called it.
  virtual Status barrier(Deadline deadline) = 0;

  // Collectives between device memory (device/collectives.hpp); null where the ranks have none, the same on
  // all of them. Owned by this.
  virtual DeviceCollectives* device_collectives() { return nullptr; }
};

}  // namespace accord
