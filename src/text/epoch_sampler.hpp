#pragma once
// The order in which a run sees its records: a new shuffle every epoch, a function of (seed, source, epoch)
// alone.
#include <cstdint>
#include <vector>

namespace accord::text {

class EpochSampler {
 public:
  // size > 0: the number of records. `source` < 2^16 tells the files of a mixture apart.
  EpochSampler(uint64_t seed, uint64_t size, uint64_t source = 0);

  // The next `count` record indices, in [0, size). A batch may run over the end of an epoch; within an epoch
  // each index comes once.
  std::vector<uint64_t> next(uint64_t count);

  uint64_t epoch() const { return epoch_; }
  uint64_t position() const { return position_; }                           // within the epoch
  uint64_t consumed() const { return epoch_ * order_.size() + position_; }  // since the run began
  void seek(uint64_t consumed);  // continues as if so many had been drawn

 private:
  void shuffle();

  uint64_t seed_;
  uint64_t source_;
  uint64_t epoch_ = 0;
  uint64_t position_ = 0;
  std::vector<uint64_t> order_;
};

}  // namespace accord::text
