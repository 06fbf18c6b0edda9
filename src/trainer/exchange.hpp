#pragma once
// What trainer ranks move between each other in every update, in rounds of bounded chunks:
//
//   gradients   every holder's to the owner, which adds them up
//   originals   bf16(master) of low-precision weights, from the owner to the other holders
#include <cstdint>
#include <functional>
#include <span>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/dtype.hpp"
#include "base/status.hpp"
#include "device/thread_pool.hpp"
#include "trainer/shards.hpp"

namespace accord::trainer {

inline constexpr int64_t kRoundBytes = int64_t{16} << 20;  // that a rank sends in a round, to all ranks

// The gradients of the tensors that this rank owns become ((g0 + g1) + g2) + ... over the ranks that hold the
// tensor, ascending, fp32; those of other tensors stay this rank's own. `gradients`: the array of `layout`
// (ParameterTable::held). Collective.
Status reduce_gradients(const ShardLayout& layout, float* gradients, Communicator& group, ThreadPool& pool,
                        Deadline deadline, int64_t round_bytes = kRoundBytes);

// Fills the array of `layout` (ParameterTable::plan_originals). `master` gives the masters of the tensors
// that this rank owns. Collective.
Status share_originals(const ShardLayout& layout, BF16* originals,
                       const std::function<std::span<const float>(int64_t parameter)>& master,
                       Communicator& group, ThreadPool& pool, Deadline deadline,
                       int64_t round_bytes = kRoundBytes);

// The sizes of the rounds of one exchange. Every rank's rounds number the same.
struct ExchangeRounds {
  int64_t chunk = 0;  // elements per section and round
  int64_t count = 0;

  // The elements of a section of `length` that travel in a round.
  int64_t elements(int64_t length, int64_t round) const;
};
StatusOr<ExchangeRounds> plan_rounds(const ShardLayout& layout, Communicator& group, int64_t element_bytes,
                                     int64_t round_bytes, Deadline deadline);

}  // namespace accord::trainer
