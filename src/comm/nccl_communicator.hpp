#pragma once
// Collectives between GPUs over NCCL, beside those of a host communicator of the same ranks.
//
// NCCL itself waits without end for a peer that is gone. Here all calls are non-blocking and polled: a
// deadline, an error that NCCL reports, or a peer that closed its connection of the host communicator aborts
// NCCL's communicator, which also ends its kernels, and closes the host's, so that the peers abort too.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/communicator.hpp"
#include "comm/gloo_communicator.hpp"
#include "comm/nccl_api.hpp"
#include "comm/store.hpp"
#include "device/collectives.hpp"
#include "device/device.hpp"

namespace accord::comm {

class NcclCommunicator final : public Communicator, private DeviceCollectives {
 public:
  // `host`: of the same group, whose name `group` is. Rank 0 makes NCCL's id and hands it out through
  // `store`, which is used until this returns. Each rank is on a device of its own. Errors: kUnavailable,
  // kDeadlineExceeded, naming rank and reason.
  static StatusOr<std::unique_ptr<Communicator>> create(const NcclApi& api, const std::string& group,
                                                        const Device& device,
                                                        std::unique_ptr<GlooCommunicator> host, Store& store,
                                                        Deadline deadline);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status broadcast(void* data, int64_t bytes, int root, Deadline deadline) override;
  Status all_reduce_sum(float* data, int64_t count, Deadline deadline) override;
  Status all_gather(const void* in, int64_t bytes, void* out, Deadline deadline) override;
  Status all_to_all(const void* in, std::span<const int64_t> in_bytes, void* out,
                    std::span<const int64_t> out_bytes, Deadline deadline) override;
  Status barrier(Deadline deadline) override;
  DeviceCollectives* device_collectives() override { return this; }

 private:
  NcclCommunicator(const NcclApi& api, std::string group, const Device& device,
                   std::unique_ptr<GlooCommunicator> host);

  Status broadcast(void* data, int64_t bytes, int root, const Stream& stream, Deadline deadline) override;
  Status all_gather(const void* in, int64_t bytes, void* out, const Stream& stream,
                    Deadline deadline) override;
  Status exchange(std::span<const Part> out, std::span<const Part> in, const Stream& stream,
                  Deadline deadline) override;
  Status finish(const Stream& stream, Deadline deadline) override;

  StatusOr<NcclId> share_id(Store& store, Deadline deadline);
  Status init(Store& store, Deadline deadline);
  Status on_host(const std::function<Status(Communicator&)>& call);
  Status enqueue(const std::string& what, Deadline deadline, const std::function<int()>& call);
  // Until `done` says so (its error: NCCL's result), NCCL reports an error, a peer leaves, or the deadline.
  Status poll(const std::string& what, Deadline deadline, const std::function<StatusOr<bool>()>& done);
  Status settle(const std::string& what, int result, Deadline deadline);
  Status nccl_error(const std::string& what, int result) const;
  Status fail(Status status);  // aborts, and is `status` from now on

  const NcclApi api_;
  const std::string group_;
  const Device device_;
  const int rank_;
  const int size_;
  std::atomic<bool> peer_left_{false};  // set by host_'s watch
  std::unique_ptr<GlooCommunicator> host_;
  NcclHandle comm_ = nullptr;
  Event done_;
  Status broken_;
};

}  // namespace accord::comm
