#pragma once
// The trainer pool's side of "the same bytes everywhere": masters become the arena's bytes, on every trainer.
#include <cstdint>
#include <vector>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "controller/policy_setup.hpp"
#include "controller/worker.hpp"
#include "device/thread_pool.hpp"
#include "trainer/trainer.hpp"
#include "weights/arena.hpp"

namespace accord::controller {

class PublishedPolicy {
 public:
  // All must outlive this object.
  PublishedPolicy(const PolicySetup& policy, trainer::Trainer& trainer, weights::Arena& arena,
                  ThreadPool& pool);

  // Quantizes the masters that this rank owns into its arena. With a `group` (null: this rank is the pool)
  // the others' bytes come from their owners, and are compared with the owners' digests.
  Status publish(Communicator* group, Deadline deadline);

  // Of what was published last; manifest order.
  const std::vector<TensorRecord>& records() const { return records_; }
  std::vector<std::string> digests() const;
  const std::vector<int32_t>& owners() const { return owners_; }

 private:
  Status exchange(Communicator& group, Deadline deadline);

  const PolicySetup& policy_;
  trainer::Trainer& trainer_;
  weights::Arena& arena_;
  ThreadPool& pool_;
  std::vector<int32_t> owners_;  // rank in the pool, per tensor
  std::vector<bool> holds_;      // empty: all
  std::vector<TensorRecord> records_;
};

}  // namespace accord::controller
