#include "bench/gpu.hpp"

namespace accord::bench {

Gpu::Gpu(const Device& device) : device_(device) {
  must(device_.make_current());
  stream_ = must(Stream::create(device_));
}

Memory Gpu::upload(const void* data, size_t bytes) const {
  Memory memory = allocate(bytes);
  must(stream_.copy(memory.data(), data, bytes));
  must(stream_.synchronize());
  return memory;
}

void Gpu::download(const Memory& from, void* to, size_t bytes) const {
  must(stream_.copy(to, from.data(), bytes));
  must(stream_.synchronize());
}

}  // namespace accord::bench
