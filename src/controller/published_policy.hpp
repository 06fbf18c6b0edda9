#pragma once
// The trainer pool's side of "the same bytes everywhere": masters become the arena's bytes, on every trainer.
#include <cstdint>
#include <memory>
#include <vector>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "controller/policy_arena.hpp"
#include "controller/policy_setup.hpp"
#include "controller/update_channel.hpp"
#include "controller/worker.hpp"
#include "device/thread_pool.hpp"
#include "trainer/trainer.hpp"
#include "weights/device_export.hpp"
#include "weights/export.hpp"

namespace accord::controller {

class PublishedPolicy {
 public:
  // All must outlive this object; `arena` is on the trainer's device. Errors: of a device, memory.
  static StatusOr<std::unique_ptr<PublishedPolicy>> create(const PolicySetup& policy,
                                                           trainer::Trainer& trainer, PolicyArena& arena,
                                                           ThreadPool& pool);

  // Quantizes the masters that this rank owns into its arena, where they lie; on a device only what the step,
  // if there was one, left to quantize. With a `group` (null: this rank is the pool) the others' bytes come
  // from their owners, and are compared with the owners' digests. With `to_host` a device's bytes also come
  // down to the arena's copy on the host, through which they go where the group has no device collectives.
  Status publish(Communicator* group, bool to_host, Deadline deadline);

  // Of what was published last; manifest order.
  const std::vector<TensorRecord>& records() const { return records_; }
  std::vector<std::string> digests() const;
  const std::vector<int32_t>& owners() const { return owners_; }

 private:
  PublishedPolicy(const PolicySetup& policy, trainer::Trainer& trainer, PolicyArena& arena, ThreadPool& pool);
  Status match_parameters();
  StatusOr<weights::ExportReport> export_masters(bool to_host);
  Status exchange_records(Communicator& group, Deadline deadline);
  Status share_on_host(Communicator& group, Deadline deadline);
  Status share_on_device(Communicator& group, Deadline deadline);

  const PolicySetup& policy_;
  trainer::Trainer& trainer_;
  PolicyArena& arena_;
  ThreadPool& pool_;
  std::unique_ptr<weights::DeviceExporter> exporter_;  // where masters lie on a device
  std::unique_ptr<DeviceUpdates> updates_;             // with device collectives
  std::vector<int32_t> owners_;                        // rank in the pool, per tensor
  std::vector<bool> owned_;                            // by this rank
  std::vector<size_t> parameters_;                     // of the trainer, per tensor; on a device
  std::vector<bool> holds_;                            // empty: all
  std::vector<TensorRecord> records_;
};

}  // namespace accord::controller
