#include "hard_values.hpp"

#include <bit>
#include <vector>

namespace gpu_test {
namespace {

using namespace accord;

// splitmix64
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

constexpr uint32_t kSpecials[16] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345, 0x7f800000, 0xff800000,
                                    0x80000000, 0x7f7fffff, 0xff7fffff, 0x00000001, 0x807fffff, 0x00800000,
                                    0x3e800000, 0xbf400000, 0x40a00000, 0xc0600000};

uint32_t with_exponent(uint64_t bits, int exponent) {
  return static_cast<uint32_t>(bits & 0x807fffffu) |
         (static_cast<uint32_t>(exponent < 0 ? 0 : exponent) << 23);
}

uint32_t value(int kind, uint64_t bits, uint64_t row_bits, int64_t col) {
  const auto high = static_cast<uint32_t>(bits >> 32);
  // One exponent for each run of 16 columns.
  const int base =
      static_cast<int>(((row_bits ^ static_cast<uint64_t>(col / 16) * 0x9e3779b97f4a7c15u) >> 40) % 255);
  switch (kind) {
    case 0:
      return static_cast<uint32_t>(bits);
    case 1:
      return with_exponent(bits, 118 + static_cast<int>(high % 12));
    case 2:
      return with_exponent(bits, base - static_cast<int>(high % 16));
    case 3: {
      const float multiple = static_cast<float>(static_cast<int>(high % 57) - 28);
      const int exponent = static_cast<int>(row_bits % 41) - 20;
      return std::bit_cast<uint32_t>(multiple *
                                     std::bit_cast<float>(static_cast<uint32_t>(127 + exponent) << 23));
    }
    case 4:
      return with_exponent(bits, static_cast<int>(high % 4));
    case 5:
      return high % 1000 == 0 ? kSpecials[4 + high / 1000 % 2]
                              : with_exponent(bits, 250 + static_cast<int>(high % 5));
    case 6:
      return high % 8 == 0 ? with_exponent(bits, 120 + static_cast<int>(high / 8 % 8))
                           : static_cast<uint32_t>(bits & 0x80000000u);
    default:
      return high % 200 == 0 ? kSpecials[high / 200 % 16]
                             : with_exponent(bits, 120 + static_cast<int>(high % 8));
  }
}

template <class T>
void fill(uint64_t seed, int64_t rows, int64_t cols, T* x, ThreadPool& pool) {
  pool.parallel_for(rows, [&](int64_t r) {
    Random random{seed * 0x2545f4914f6cdd1du + static_cast<uint64_t>(r) * 0x9e3779b97f4a7c15u};
    const uint64_t row_bits = random.next();
    const int kind = static_cast<int>(row_bits % kNumKinds);
    for (int64_t c = 0; c < cols; ++c) {
      const uint32_t bits = value(kind, random.next(), row_bits, c);
      if constexpr (sizeof(T) == sizeof(float)) {
        x[r * cols + c] = std::bit_cast<float>(bits);
      } else {
        x[r * cols + c] = BF16{static_cast<uint16_t>(bits >> 16)};
      }
    }
  });
}

}  // namespace

void fill_hard(uint64_t seed, int64_t rows, int64_t cols, float* x, ThreadPool& pool) {
  fill(seed, rows, cols, x, pool);
}
void fill_hard(uint64_t seed, int64_t rows, int64_t cols, BF16* x, ThreadPool& pool) {
  fill(seed, rows, cols, x, pool);
}

}  // namespace gpu_test
