#pragma once
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): a counter-based
// generator. The numbers of a sample depend on its identity only, never on who draws it or when.
#include <array>
#include <cstdint>

namespace accord {

using PhiloxBlock = std::array<uint32_t, 4>;

PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key);

// 64-bit mix of (seed, a, b) into a Philox key; splitmix64 finalizer chained over the inputs.
std::array<uint32_t, 2> philox_key(uint64_t seed, uint64_t a, uint64_t b);

// Uniform in [0, 1): the top 24 bits of u.
constexpr float uniform_float(uint32_t u) { return static_cast<float>(u >> 8) * 0x1p-24F; }

// The draw for one sampled token: key from (run seed, step, prompt id), counter (sample, position, stream,
// 0).
PhiloxBlock sample_random(uint64_t run_seed, uint64_t step, uint64_t prompt_id, uint32_t sample_index,
                          uint32_t position);

// A sequential source over a Philox stream, for shuffles and initialization.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, uint64_t stream);
  uint32_t next_u32();
  uint64_t next_below(uint64_t bound);  // unbiased in [0, bound), bound > 0
  double next_double();                 // [0, 1), 53 bits
  double next_normal();                 // Box-Muller

 private:
  std::array<uint32_t, 2> key_;
  uint64_t counter_ = 0;
  PhiloxBlock block_{};
  int used_ = 4;
};

}  // namespace accord
