#include "bench/cpu_ceilings.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <numeric>

#include "device/buffer.hpp"

namespace accord::bench {
namespace {

constexpr int kRounds = 5;
constexpr double kRoundSeconds = 2e-3;
constexpr double kLeastSeconds = 1e-9;
constexpr size_t kCopyBytes = size_t{64} << 20;

double thread_clock() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

double cpu_seconds(const std::function<void()>& work) {
  work();
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    int calls = 0;
    const double start = thread_clock();
    double elapsed = 0.0;
    do {
      work();
      ++calls;
      elapsed = thread_clock() - start;
    } while (elapsed < kRoundSeconds);
    best = std::min(best, elapsed / calls);
  }
  return std::max(best, kLeastSeconds);
}

Ceilings cpu_bandwidth() {
  Ceilings c;
  const Buffer from(kCopyBytes);
  const Buffer to(kCopyBytes);
  std::memset(from.data(), 1, kCopyBytes);
  std::memset(to.data(), 1, kCopyBytes);
  c.copy = 2.0 * kCopyBytes / cpu_seconds([&] { std::memcpy(to.data(), from.data(), kCopyBytes); });
  const auto* const words = from.as<uint64_t>();
  volatile uint64_t sink = 0;
  const double read =
      cpu_seconds([&] { sink = std::accumulate(words, words + kCopyBytes / sizeof(uint64_t), uint64_t{0}); });
  c.read = std::max(kCopyBytes / read, c.copy);
  return c;
}

}  // namespace accord::bench
