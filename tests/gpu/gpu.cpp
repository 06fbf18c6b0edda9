#include "gpu.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpu_test {

using namespace accord;

void must(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(message_of(status)).c_str());
    std::exit(static_cast<int>(exit_code(status)));
  }
}

std::optional<Gpu> Gpu::open() {
  const char* wanted = std::getenv("ACCORD_TEST_DEVICE");
  const DeviceId id = must(parse_device(wanted == nullptr ? "cuda:0" : wanted));
  StatusOr<Device> device = Device::open(id);
  if (!device.ok()) {
    std::printf("SKIPPED: %s\n", std::string(message_of(device.status())).c_str());
    return std::nullopt;
  }
  Gpu gpu;
  gpu.device_ = *device;
  gpu.stream_ = must(Stream::create(*device));
  gpu.name_ = must(list_cuda_devices())[static_cast<size_t>(id.index)].name;
  return gpu;
}

Memory Gpu::allocate(size_t bytes) const {
  Memory memory = must(Memory::allocate(device_, bytes));
  constexpr uint8_t kPoison = 0xa5;
  must(stream_.fill(memory.data(), kPoison, bytes));
  return memory;
}

Memory Gpu::upload(const void* data, size_t bytes) const {
  Memory memory = must(Memory::allocate(device_, bytes));
  must(stream_.copy(memory.data(), data, bytes));
  must(stream_.synchronize());
  return memory;
}

void Gpu::download(const Memory& from, void* to, size_t bytes) const {
  must(stream_.copy(to, from.data(), bytes));
  must(stream_.synchronize());
}

TensorCoreProducts::TensorCoreProducts() { setenv("ACCORD_EMULATED_PRODUCTS", "exact", 1); }
TensorCoreProducts::~TensorCoreProducts() { unsetenv("ACCORD_EMULATED_PRODUCTS"); }

namespace {

template <class T, class Same>
int64_t count(const std::vector<T>& a, const std::vector<T>& b, Same same) {
  int64_t result = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    result += same(a[i], b[i]) ? 0 : 1;
  }
  return result;
}

}  // namespace

int64_t different(const std::vector<float>& a, const std::vector<float>& b) {
  return count(a, b, [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y));
  });
}
int64_t different(const std::vector<BF16>& a, const std::vector<BF16>& b) {
  return count(a, b, [](BF16 x, BF16 y) {
    return x.bits == y.bits || (std::isnan(to_float(x)) && std::isnan(to_float(y)));
  });
}
int64_t different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  return count(a, b, [](uint8_t x, uint8_t y) { return x == y; });
}
int64_t different(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return count(a, b, [](int32_t x, int32_t y) { return x == y; });
}

}  // namespace gpu_test
