#pragma once
// What the parts of a CUDA trainer share: where they run, and memory that each part takes under a number of
// its own and reuses from call to call. Header only.
#include <cstdint>
#include <vector>

#include "base/model_config.hpp"
#include "device/device.hpp"
#include "device/device_buffer.hpp"
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

}  // namespace accord::trainer
