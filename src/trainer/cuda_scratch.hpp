#pragma once
// What the parts of a CUDA trainer share: where they run, and memory that each part takes under a number of
// its own and reuses from call to call. Header only.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/model_config.hpp"
#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"
#include "trainer/cuda_parameters.hpp"
#include "trainer/layer_params.hpp"

namespace accord::trainer {

// Borrowed.
struct CudaContext {
  const ModelConfig& config;
  const Device& device;
  const Stream& stream;
  const CudaParameters& parameters;
  const ModelParams& params;
  const BackwardOptions& backward;

  StreamHandle handle() const { return stream.handle(); }
};

class CudaScratch {
 public:
  CudaScratch(const Device& device, size_t parts) : device_(device), buffers_(parts) {}

  // Room for `count` elements; growing discards the content.
  template <class T>
  StatusOr<T*> get(size_t part, int64_t count) {
    ACCORD_RETURN_IF_ERROR(buffers_[part].ensure(device_, static_cast<size_t>(count) * sizeof(T)));
    return buffers_[part].as<T>();
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const DeviceBuffer& buffer : buffers_) sum += static_cast<int64_t>(buffer.capacity());
    return sum;
  }

 private:
  const Device& device_;
  std::vector<DeviceBuffer> buffers_;
};

// Memory of one part after the other, for the phases of a call: what was taken since a mark is taken again by
// the next phase. In stream order nothing else is needed.
class CudaFrame {
 public:
  explicit CudaFrame(const Device& device) : device_(device) {}

  static int64_t padded(int64_t bytes) {
    constexpr int64_t kAlignment = Memory::kAlignment;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Room for a call, in padded sizes; takes begin anew.
  Status begin(int64_t bytes) {
    used_ = 0;
    return buffer_.ensure(device_, static_cast<size_t>(bytes));
  }
  template <class T>
  T* take(int64_t count) {
    T* const out = reinterpret_cast<T*>(buffer_.as<std::byte>() + used_);
    used_ += padded(count * static_cast<int64_t>(sizeof(T)));
    return out;
  }
  int64_t mark() const { return used_; }
  void rewind(int64_t mark) { used_ = mark; }
  int64_t bytes() const { return static_cast<int64_t>(buffer_.capacity()); }

 private:
  const Device& device_;
  DeviceBuffer buffer_;
  int64_t used_ = 0;
};

}  // namespace accord::trainer
