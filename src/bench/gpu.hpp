#pragma once
// A device with a stream of its own, and memory on it. For devices with kernels.
#include <cstddef>
#include <string>
#include <vector>

#include "bench/failure.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"

namespace accord::bench {

class Gpu {
 public:
  explicit Gpu(const Device& device);

  const Device& device() const { return device_; }
  const Stream& stream() const { return stream_; }
  StreamHandle handle() const { return stream_.handle(); }

  Memory allocate(size_t bytes) const { return must(Memory::allocate(device_, bytes)); }
  Memory upload(const void* data, size_t bytes) const;
  void download(const Memory& from, void* to, size_t bytes) const;
  void synchronize() const { must(stream_.synchronize()); }

  template <class T>
  Memory upload(const std::vector<T>& data) const {
    return upload(data.data(), data.size() * sizeof(T));
  }
  template <class T>
  std::vector<T> download(const Memory& from, size_t count) const {
    std::vector<T> out(count);
    download(from, out.data(), count * sizeof(T));
    return out;
  }

 private:
  Device device_;
  Stream stream_;
};

}  // namespace accord::bench
