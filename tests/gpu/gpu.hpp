#pragma once
// The device under test, and memory on it. Calls that must not fail end the program with the message.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"

namespace gpu_test {

void must(const accord::Status& status);
template <class T>
T must(accord::StatusOr<T> value) {
  must(value.status());
  return std::move(value).value();
}

class Gpu {
 public:
  // cuda:0 (or ACCORD_TEST_DEVICE); none, after printing SKIPPED: and why, where there is none.
  static std::optional<Gpu> open();

  const accord::Device& device() const { return device_; }
  const accord::Stream& stream() const { return stream_; }
  accord::StreamHandle handle() const { return stream_.handle(); }
  const std::string& name() const { return name_; }
  bool emulated() const { return name_ == "emulated"; }  // tests/emulation: the CPU's sums

  // Filled with 0xa5, so that what a kernel leaves unwritten differs from any expected result.
  accord::Memory allocate(size_t bytes) const;
  accord::Memory upload(const void* data, size_t bytes) const;
  void download(const accord::Memory& from, void* to, size_t bytes) const;
  void synchronize() const { must(stream_.synchronize()); }

  template <class T>
  accord::Memory upload(const std::vector<T>& data) const {
    return upload(data.data(), data.size() * sizeof(T));
  }
  template <class T>
  std::vector<T> download(const accord::Memory& from, size_t count) const {
    std::vector<T> out(count);
    download(from, out.data(), count * sizeof(T));
    return out;
  }

 private:
  Gpu() = default;
  accord::Device device_;
  accord::Stream stream_;
  std::string name_;
};

// While it lives, products of an emulated device (tests/emulation) have the tensor core's bits, as a GPU's
// always have.
class TensorCoreProducts {
 public:
  TensorCoreProducts();
  ~TensorCoreProducts();
  TensorCoreProducts(const TensorCoreProducts&) = delete;
  TensorCoreProducts& operator=(const TensorCoreProducts&) = delete;
};

// Elements whose bits differ; any NaN equals any NaN. A different length counts as one more.
int64_t different(const std::vector<float>& a, const std::vector<float>& b);
int64_t different(const std::vector<accord::BF16>& a, const std::vector<accord::BF16>& b);
int64_t different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b);
int64_t different(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

}  // namespace gpu_test
