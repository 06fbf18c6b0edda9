#pragma once
// The order in which a run sees the records of several files, each with its share of the draws.
//
// Draw k of a run goes to the file in whose part of [0, 1) the point frac(c + k phi) falls, with phi the
// golden ratio (H. Weyl's sequence) and c from the seed: after any number of draws each file's count is
// within a few of its share. A file's own draws follow its EpochSampler. Both are functions of (seed, k)
// alone.
#include <cstdint>
#include <span>
#include <vector>

#include "text/epoch_sampler.hpp"

namespace accord::text {

class MixtureSampler {
 public:
  struct Source {
    uint64_t size = 0;    // records, more than 0
    double weight = 1.0;  // more than 0; shares are weights over their sum
  };
  struct Draw {
    size_t source = 0;
    uint64_t index = 0;  // of the record within its source
    bool operator==(const Draw&) const = default;
  };

  // At least one source. One alone gives the order of EpochSampler(seed, size).
  MixtureSampler(uint64_t seed, std::span<const Source> sources);

  std::vector<Draw> next(uint64_t count);
  uint64_t consumed() const { return consumed_; }
  void seek(uint64_t consumed);  // continues as if so many had been drawn; linear in `consumed`

 private:
  size_t source_of(uint64_t draw) const;

  uint64_t start_;
  uint64_t consumed_ = 0;
  std::vector<uint64_t> ends_;  // of the sources' parts of [0, 2^64), but for the last
  std::vector<EpochSampler> samplers_;
};

}  // namespace accord::text
