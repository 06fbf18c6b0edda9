#pragma once
// A copy of a local model's weights in a CUDA device's memory, and the stream of what computes with them.
#include <memory>

#include "base/status.hpp"
#include "controller/local_model.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"
#include "model/forward.hpp"

namespace accord::controller {

class DeviceWeights {
 public:
  // Makes `device` the thread's. Errors: a model that computes in float32, which devices do not; memory.
  static StatusOr<std::unique_ptr<DeviceWeights>> copy(const LocalModel& local, const Device& device);

  const ModelConfig& config() const { return config_; }
  const Device& device() const { return device_; }
  const Stream& stream() const { return stream_; }
  // Points into this copy.
  StatusOr<model::PolicyWeights> bind() const {
    return model::bind_weights(config_, manifest_, memory_.data());
  }

 private:
  DeviceWeights(const LocalModel& local, const Device& device)
      : config_(local.config()), manifest_(local.manifest()), device_(device) {}

  const ModelConfig config_;
  const WeightManifest manifest_;
  const Device device_;
  Stream stream_;
  Memory memory_;
};

}  // namespace accord::controller
