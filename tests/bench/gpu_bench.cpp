#include "gpu_bench.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/philox.hpp"

namespace gpu_bench {

using namespace accord;

namespace {

gpu_test::Gpu open() {
  std::optional<gpu_test::Gpu> gpu = gpu_test::Gpu::open();
  if (!gpu) std::exit(0);  // it said why
  return *std::move(gpu);
}

}  // namespace

GpuBench::GpuBench() : gpu_(open()) {}

Memory GpuBench::random(size_t bytes, bool bf16) {
  std::vector<uint8_t>& host = pieces_[bf16 ? 1 : 0];
  if (host.empty()) {
    host.resize(size_t{1} << 22);
    PhiloxStream random(1, bf16 ? 1 : 2);
    if (bf16) {
      for (size_t i = 0; i + 1 < host.size(); i += 2) {
        const BF16 x = to_bf16(static_cast<float>(random.next_normal()));
        std::memcpy(host.data() + i, &x, 2);
      }
    } else {
      for (uint8_t& x : host) x = static_cast<uint8_t>(random.next_u32() % 255) & 0xf7u;
    }
  }
  Memory memory = must(Memory::allocate(gpu_.device(), bytes));
  for (size_t at = 0; at < bytes; at += host.size()) {
    must(gpu_.stream().copy(memory.as<uint8_t>() + at, host.data(), std::min(host.size(), bytes - at)));
  }
  gpu_.synchronize();
  return memory;
}

Memory GpuBench::scales(size_t bytes, uint8_t value) const {
  Memory memory = must(Memory::allocate(gpu_.device(), std::max<size_t>(bytes, 16)));
  must(gpu_.stream().fill(memory.data(), value, memory.bytes()));
  return memory;
}

double GpuBench::milliseconds(const std::function<void(int)>& call) const {
  constexpr double kRoundMs = 5.0;
  Event start = must(Event::create(gpu_.device()));
  Event end = must(Event::create(gpu_.device()));
  for (int i = 0; i < 3; ++i) call(i);
  std::vector<double> times;
  int count = 1;
  for (int round = 0; round < 9; ++round) {
    must(start.record(gpu_.stream()));
    for (int i = 0; i < count; ++i) call(i);
    must(end.record(gpu_.stream()));
    must(end.synchronize());
    const double ms = must(end.milliseconds_since(start)) / count;
    if (round < 2) {
      count = std::clamp(static_cast<int>(kRoundMs / std::max(ms, 1e-3)), 1, 400);
    } else {
      times.push_back(ms);
    }
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double GpuBench::copy_bytes_per_second() const {
  const size_t bytes = size_t{2} << 30;
  const Memory from = allocate(bytes);
  const Memory to = allocate(bytes);
  const double ms = milliseconds([&](int) { must(gpu_.stream().copy(to.data(), from.data(), bytes)); });
  return 2.0 * static_cast<double>(bytes) / (ms * 1e-3);
}

}  // namespace gpu_bench
