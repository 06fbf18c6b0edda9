#pragma once
// Memory of one device that grows: Buffer's counterpart where allocation can fail. Growing discards the
// content and waits for the device, because queued work may still use the old block; in a steady state
// nothing grows.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/tensor_view.hpp"

namespace accord {

class DeviceBuffer {
 public:
  // At least `bytes`; more than asked where it grows again, so that slowly growing batches do not allocate at
  // each step. Errors: Memory::allocate's.
  Status ensure(const Device& device, size_t bytes, MemoryKind kind = MemoryKind::kDevice);
  Status ensure_matrix(const Device& device, Dtype dtype, int64_t rows, int64_t cols);

  // Adds where its memory begins and ends: other memory, even at the same address, has another size.
  void add_bounds(std::vector<const void*>& out) const;

  void* data() const { return memory_.data(); }
  size_t capacity() const { return memory_.bytes(); }
  template <class T>
  T* as() const {
    return memory_.as<T>();
  }
  // A contiguous matrix in what was ensured before.
  MatrixView matrix(Dtype dtype, int64_t rows, int64_t cols) const;

 private:
  Memory memory_;
};

}  // namespace accord
