#include "text/mixture_sampler.hpp"

#include <algorithm>
#include <cmath>

#include "base/philox.hpp"

namespace accord::text {
namespace {

constexpr uint64_t kStream = 0x6d69787475726500ull;       // of the sequence's start
constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15ull;  // its fraction, times 2^64

uint64_t start_of(uint64_t seed) {
  PhiloxStream random(seed, kStream);
  const uint64_t high = random.next_u32();
  return high << 32 | random.next_u32();
}

}  // namespace

MixtureSampler::MixtureSampler(uint64_t seed, std::span<const Source> sources) : start_(start_of(seed)) {
  double sum = 0.0;
  for (const Source& source : sources) {
    sum += source.weight;
  }
  double before = 0.0;
  for (size_t i = 0; i < sources.size(); ++i) {
    samplers_.emplace_back(seed, sources[i].size, i);
    before += sources[i].weight;
    if (i + 1 < sources.size()) {
      const double end = std::min(before / sum, std::nextafter(1.0, 0.0));
      ends_.push_back(static_cast<uint64_t>(std::ldexp(end, 64)));
    }
  }
}

size_t MixtureSampler::source_of(uint64_t draw) const {
  const uint64_t point = start_ + draw * kGoldenRatio;
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), point) - ends_.begin());
}

std::vector<MixtureSampler::Draw> MixtureSampler::next(uint64_t count) {
  std::vector<Draw> draws;
  draws.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const size_t source = source_of(consumed_++);
    draws.push_back({source, samplers_[source].next(1).front()});
  }
  return draws;
}

void MixtureSampler::seek(uint64_t consumed) {
  std::vector<uint64_t> counts(samplers_.size(), 0);
  if (counts.size() == 1) {
    counts.front() = consumed;
  } else {
    for (uint64_t draw = 0; draw < consumed; ++draw) {
      ++counts[source_of(draw)];
    }
  }
  for (size_t i = 0; i < samplers_.size(); ++i) {
    samplers_[i].seek(counts[i]);
  }
  consumed_ = consumed;
}

}  // namespace accord::text
