#include "text/epoch_sampler.hpp"

#include <numeric>
#include <utility>

#include "base/philox.hpp"

namespace accord::text {
namespace {

constexpr uint64_t kStream = 0x73687566666c6500ull;  // keeps the shuffles apart from the run's other draws

}  // namespace

EpochSampler::EpochSampler(uint64_t seed, uint64_t size, uint64_t source)
    : seed_(seed), source_(source), order_(size) {
  shuffle();
}

// Fisher-Yates, from the identity.
void EpochSampler::shuffle() {
  std::iota(order_.begin(), order_.end(), uint64_t{0});
  PhiloxStream random(seed_, kStream ^ source_ << 40 ^ epoch_);
  for (uint64_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[random.next_below(i)]);
  }
}

std::vector<uint64_t> EpochSampler::next(uint64_t count) {
  std::vector<uint64_t> indices;
  indices.reserve(count);
  while (indices.size() < count) {
    if (position_ == order_.size()) {
      ++epoch_;
      position_ = 0;
      shuffle();
    }
    indices.push_back(order_[position_++]);
  }
  return indices;
}

void EpochSampler::seek(uint64_t consumed) {
  const uint64_t epoch = consumed / order_.size();
  position_ = consumed % order_.size();
  if (epoch != epoch_) {
    epoch_ = epoch;
    shuffle();
  }
}

}  // namespace accord::text
