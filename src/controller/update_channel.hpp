#pragma once
// The weight transaction's channel over a communicator. Trainers are the first ranks and the senders; trainer
// 0 leads.
#include <memory>
#include <string>
#include <vector>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "device/collectives.hpp"
#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/stream.hpp"
#include "weights/device_digest.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {

// `communicator` must outlive the channel; `deadline` bounds every call made through it.
weights::UpdateChannel make_update_channel(Communicator& communicator, Deadline deadline);

// The way of weights between device memory, for a group that has device collectives: what is said about them
// still goes through the host. Chunks travel on a stream of their own, and their digests on another.
class DeviceUpdates {
 public:
  // Takes digests and their memory. `manifest` must outlive it. Errors: memory.
  static StatusOr<std::unique_ptr<DeviceUpdates>> create(const WeightManifest& manifest,
                                                         const Device& device);

  // Options of an update between devices: larger chunks.
  static weights::UpdateOptions options(uint64_t version);

  // make_update_channel for arenas on devices. `group` has device collectives. What the arena's bytes come
  // from must be done: the channel's stream waits for no other.
  weights::UpdateChannel channel(Communicator& group, Deadline deadline) const;

  // For UpdateReceiver::receive, together with that channel.
  class Digest final : public weights::StagingDigest {
   public:
    Digest(DeviceUpdates& updates, Communicator& group, Deadline deadline)
        : updates_(updates), collectives_(*group.device_collectives()), deadline_(deadline) {}
    Status begin(const std::byte* staging) override;
    Status arrived(int64_t count) override;
    StatusOr<std::vector<std::string>> digests() override;

   private:
    DeviceUpdates& updates_;
    DeviceCollectives& collectives_;
    const Deadline deadline_;
  };

  // Of an arena whose bytes are there.
  StatusOr<std::vector<std::string>> digests_of(const std::byte* arena);

  // At least `bytes` of device memory to receive into.
  StatusOr<std::span<std::byte>> scratch(int64_t bytes);

 private:
  explicit DeviceUpdates(const Device& device) : device_(device) {}

  const Device device_;
  Stream stream_;
  std::unique_ptr<weights::DeviceDigest> digest_;
  DeviceBuffer scratch_;
};

}  // namespace accord::controller
