#include "device/device_buffer.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace accord {

Status DeviceBuffer::ensure(const Device& device, size_t bytes, MemoryKind kind) {
  if (bytes <= memory_.bytes()) return absl::OkStatus();
  size_t wanted = bytes;
  if (memory_.bytes() > 0) {
    ACCORD_RETURN_IF_ERROR(device.synchronize());
    wanted = std::max(bytes, memory_.bytes() + memory_.bytes() / 4);
    memory_ = Memory();  // before the new block, so that both need not fit
  }
  ACCORD_ASSIGN_OR_RETURN(memory_, Memory::allocate(device, wanted, kind));
  return absl::OkStatus();
}

Status DeviceBuffer::ensure_matrix(const Device& device, Dtype dtype, int64_t rows, int64_t cols) {
  return ensure(device, static_cast<size_t>(rows * cols * size_of(dtype)));
}

void DeviceBuffer::add_bounds(std::vector<const void*>& out) const {
  out.push_back(data());
  out.push_back(as<std::byte>() + capacity());
}

MatrixView DeviceBuffer::matrix(Dtype dtype, int64_t rows, int64_t cols) const {
  assert(static_cast<size_t>(rows * cols * size_of(dtype)) <= memory_.bytes());
  return {memory_.data(), dtype, rows, cols, cols};
}

}  // namespace accord
