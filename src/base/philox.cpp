#include "base/philox.hpp"

#include <cmath>
#include <limits>

namespace accord {
namespace {

constexpr uint32_t kMul0 = 0xD2511F53u;
constexpr uint32_t kMul1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u;
constexpr uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

PhiloxBlock philox4x32(PhiloxBlock c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += kWeyl0;
    k[1] += kWeyl1;
  }
  return c;
}

std::array<uint32_t, 2> philox_key(uint64_t seed, uint64_t a, uint64_t b) {
  const uint64_t mixed = splitmix64(splitmix64(splitmix64(seed) ^ a) ^ b);
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

PhiloxBlock sample_random(uint64_t run_seed, uint64_t step, uint64_t prompt_id, uint32_t sample_index,
                          uint32_t position) {
  return philox4x32({sample_index, position, 0, 0}, philox_key(run_seed, step, prompt_id));
}

PhiloxStream::PhiloxStream(uint64_t seed, uint64_t stream) : key_(philox_key(seed, stream, 0x73747265616d)) {}

uint32_t PhiloxStream::next_u32() {
  if (used_ == 4) {
    block_ = philox4x32({static_cast<uint32_t>(counter_), static_cast<uint32_t>(counter_ >> 32), 0, 1}, key_);
    ++counter_;
    used_ = 0;
  }
  return block_[static_cast<size_t>(used_++)];
}

uint64_t PhiloxStream::next_below(uint64_t bound) {
  const uint64_t limit = std::numeric_limits<uint64_t>::max() - std::numeric_limits<uint64_t>::max() % bound;
  while (true) {
    const uint64_t high = next_u32();
    const uint64_t value = (high << 32) | next_u32();
    if (value < limit) {
      return value % bound;
    }
  }
}

double PhiloxStream::next_double() {
  const uint64_t high = next_u32() >> 5;
  const uint64_t low = next_u32() >> 6;
  return static_cast<double>((high << 26) | low) * 0x1p-53;
}

double PhiloxStream::next_normal() {
  const double u = 1.0 - next_double();
  const double v = next_double();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * 3.14159265358979323846 * v);
}

}  // namespace accord
