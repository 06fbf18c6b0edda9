#pragma once
// Owned memory of a device, pinned host memory, and an arena that hands out parts of one block. Addresses
// never change: captured graphs and descriptors stay valid.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/tensor_view.hpp"

namespace accord {

enum class MemoryKind : uint8_t {
  kDevice,  // the device's own; plain host memory on the CPU
  kPinned,  // host memory that the device copies from and to without a detour; plain host memory on the CPU
};

struct MemoryDeleter {
  enum class Owner : uint8_t { kHost, kCuda, kCudaPinned };
  Owner owner = Owner::kHost;
  int device = 0;
  size_t bytes = 0;
  void operator()(void* p) const;
};

// Bytes of a CUDA device's memory that live Memory objects of this process hold, and the most that they held
// at once since reset_memory_peak. The CPU's is not counted.
struct MemoryUse {
  int64_t now = 0;
  int64_t peak = 0;
};
MemoryUse memory_use(const Device& device);
void reset_memory_peak(const Device& device);

// A block of fixed size and address, aligned to at least kAlignment. Its content is undefined.
class Memory {
 public:
  static constexpr size_t kAlignment = 256;

  Memory() = default;
  // Unavailable (naming what was asked and what is free) when there is not enough. 0 bytes are fine.
  static StatusOr<Memory> allocate(const Device& device, size_t bytes, MemoryKind kind = MemoryKind::kDevice);

  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }

 private:
  std::unique_ptr<void, MemoryDeleter> data_;
  size_t bytes_ = 0;
};

// Hands out parts of one Memory in order, and takes back all that came after a mark.
class Arena {
 public:
  Arena() = default;
  static StatusOr<Arena> create(const Device& device, size_t bytes);

  // The address of `bytes` more, aligned to a power of two up to Memory::kAlignment. Unavailable when the
  // arena is full; nothing changes then.
  StatusOr<void*> take(size_t bytes, size_t alignment = Memory::kAlignment);
  // A contiguous matrix.
  StatusOr<MatrixView> matrix(Dtype dtype, int64_t rows, int64_t cols);

  size_t used() const { return used_; }
  size_t peak() const { return peak_; }
  size_t bytes() const { return memory_.bytes(); }
  // Gives back everything taken since used() was `mark`.
  void rewind(size_t mark);

 private:
  Memory memory_;
  size_t used_ = 0;
  size_t peak_ = 0;
};

}  // namespace accord
