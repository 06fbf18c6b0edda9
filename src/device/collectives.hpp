#pragma once
// Collectives between the memory of the ranks' devices, which a Communicator has where there is a transport
// for it. The ranks make the same calls in the same order, as for a Communicator, which these belong to: an
// error of either breaks both.
//
// Calls put their work into a stream of the device that this rank joined with, after what is there already,
// and return. What is done with the data next goes into the same stream, or waits for it. Only finish() waits
// for the work itself; the others wait, up to the deadline, for peers to connect.
#include <cstdint>
#include <span>

#include "base/deadline.hpp"
#include "base/status.hpp"
#include "device/stream.hpp"

namespace accord {

class DeviceCollectives {
 public:
  // Bytes to or from one rank.
  struct Part {
    int rank = 0;
    void* data = nullptr;
    int64_t bytes = 0;
  };

  virtual ~DeviceCollectives() = default;

  // `data` of `root` to everybody.
  virtual Status broadcast(void* data, int64_t bytes, int root, const Stream& stream, Deadline deadline) = 0;

  // out[r*bytes ...] = the `bytes` bytes at `in` of rank r.
  virtual Status all_gather(const void* in, int64_t bytes, void* out, const Stream& stream,
                            Deadline deadline) = 0;

  // Every part in `out` goes to its rank, every part in `in` is filled by its rank; they do not overlap.
  // Parts between two ranks match in their order and sizes. A rank without parts may leave the call out.
  virtual Status exchange(std::span<const Part> out, std::span<const Part> in, const Stream& stream,
                          Deadline deadline) = 0;

  // Returns when everything in `stream` is done. Errors: kUnavailable, kDeadlineExceeded, as a
  // Communicator's. Nothing else may wait for a stream with collectives in it: a lost peer would make that
  // wait endless.
  virtual Status finish(const Stream& stream, Deadline deadline) = 0;
};

}  // namespace accord
