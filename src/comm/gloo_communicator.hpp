#pragma once
// The communicator of hosts without NCCL: gloo's TCP transport between CPU buffers.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/communicator.hpp"
#include "comm/store.hpp"

namespace accord::comm {

struct GlooOptions {
  std::string group;  // names the rendezvous keys; a new one per epoch
  int rank = 0;
  int size = 1;
  // Where this rank listens: an address or host name, or an interface such as eth0 (which goes first).
  std::string hostname = "127.0.0.1";
  std::string interface;
  int64_t chunk_bytes = int64_t{8} << 20;  // of one message; at most 256 MiB, the same on all ranks
};

class GlooCommunicator : public Communicator {
 public:
  // Connects to all ranks of the group; `store` is used until this returns. Broken connections are errors,
  // not signals: the process ignores SIGPIPE from here on, unless it handles it. Errors: kUsage (options),
  // kUnavailable, kDeadlineExceeded.
  static StatusOr<std::unique_ptr<GlooCommunicator>> create(const GlooOptions& options, Store& store,
                                                            Deadline deadline);
  ~GlooCommunicator() override;

  int rank() const override;
  int size() const override;
  Status broadcast(void* data, int64_t bytes, int root, Deadline deadline) override;
  Status all_reduce_sum(float* data, int64_t count, Deadline deadline) override;
  Status all_gather(const void* in, int64_t bytes, void* out, Deadline deadline) override;
  Status all_to_all(const void* in, std::span<const int64_t> in_bytes, void* out,
                    std::span<const int64_t> out_bytes, Deadline deadline) override;
  Status barrier(Deadline deadline) override;

  // Calls `lost` once, on another thread, when the connection to the next rank ends while this lives. Ranks
  // that close their connections on a failure thus tell all others, round the ring. At most one watch; all
  // ranks of the group ask for it, in the same place among their calls.
  Status watch_next(std::function<void()> lost);

 private:
  struct Impl;
  explicit GlooCommunicator(std::unique_ptr<Impl> impl);
  Status run(const char* operation, Deadline deadline, const std::function<void()>& body);

  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::comm
