#include "controller/device_weights.hpp"

namespace accord::controller {

StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::copy(const LocalModel& local, const Device& device) {
  if (local.compute_dtype() != Dtype::kBF16) {
    return usage_error(
        "a CUDA device computes in bfloat16, not in float32; leave --dtype out or use the CPU");
  }
  ACCORD_RETURN_IF_ERROR(device.make_current());
  auto weights = std::unique_ptr<DeviceWeights>(new DeviceWeights(local, device));
  ACCORD_ASSIGN_OR_RETURN(weights->stream_, Stream::create(device));
  const auto bytes = static_cast<size_t>(local.manifest().arena_bytes);
  ACCORD_ASSIGN_OR_RETURN(weights->memory_, Memory::allocate(device, bytes));
  ACCORD_RETURN_IF_ERROR(weights->stream_.copy(weights->memory_.data(), local.arena(), bytes));
  ACCORD_RETURN_IF_ERROR(weights->stream_.synchronize());
  return weights;
}

}  // namespace accord::controller
