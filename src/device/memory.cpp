#include "device/memory.hpp"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <map>
#include <mutex>

#include "device/backend.hpp"

namespace accord {
namespace {

// What the process holds per device. Blocks come and go rarely.
class Counts {
 public:
  static Counts& instance() {
    static Counts counts;
    return counts;
  }
  void add(int device, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    MemoryUse& use = uses_[device];
    use.now += bytes;
    use.peak = std::max(use.peak, use.now);
  }
  MemoryUse use(int device) {
    const std::lock_guard lock(mutex_);
    return uses_[device];
  }
  void reset_peak(int device) {
    const std::lock_guard lock(mutex_);
    uses_[device].peak = uses_[device].now;
  }

 private:
  std::mutex mutex_;
  std::map<int, MemoryUse> uses_;
};

}  // namespace

MemoryUse memory_use(const Device& device) {
  return device.is_cuda() ? Counts::instance().use(device.id().index) : MemoryUse{};
}

void reset_memory_peak(const Device& device) {
  if (device.is_cuda()) Counts::instance().reset_peak(device.id().index);
}

void MemoryDeleter::operator()(void* p) const {
  switch (owner) {
    case Owner::kHost:
      std::free(p);
      break;
    case Owner::kCuda:
      backend::release(device, p);
      Counts::instance().add(device, -static_cast<int64_t>(bytes));
      break;
    case Owner::kCudaPinned:
      backend::release_pinned(p);
      break;
  }
}

StatusOr<Memory> Memory::allocate(const Device& device, size_t bytes, MemoryKind kind) {
  Memory memory;
  memory.bytes_ = bytes;
  const size_t rounded = std::max<size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  const int index = device.id().index;
  if (!device.is_cuda()) {
    void* p = std::aligned_alloc(kAlignment, rounded);
    if (p == nullptr) {
      return unavailable_error("not enough host memory: {} bytes are needed", bytes);
    }
    memory.data_ = {p, MemoryDeleter{MemoryDeleter::Owner::kHost, 0}};
  } else if (kind == MemoryKind::kDevice) {
    ACCORD_ASSIGN_OR_RETURN(void* p, backend::allocate(index, rounded));
    memory.data_ = {p, MemoryDeleter{MemoryDeleter::Owner::kCuda, index, rounded}};
    Counts::instance().add(index, static_cast<int64_t>(rounded));
  } else {
    ACCORD_ASSIGN_OR_RETURN(void* p, backend::allocate_pinned(index, rounded));
    memory.data_ = {p, MemoryDeleter{MemoryDeleter::Owner::kCudaPinned, index}};
  }
  return memory;
}

StatusOr<Arena> Arena::create(const Device& device, size_t bytes) {
  Arena arena;
  ACCORD_ASSIGN_OR_RETURN(arena.memory_, Memory::allocate(device, bytes));
  return arena;
}

StatusOr<void*> Arena::take(size_t bytes, size_t alignment) {
  assert(alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= Memory::kAlignment);
  const size_t begin = (used_ + alignment - 1) & ~(alignment - 1);
  if (begin > memory_.bytes() || bytes > memory_.bytes() - begin) {
    return unavailable_error("the arena of {} bytes has {} in use and cannot take {} more", memory_.bytes(),
                             used_, bytes);
  }
  used_ = begin + bytes;
  peak_ = std::max(peak_, used_);
  return static_cast<void*>(memory_.as<std::byte>() + begin);
}

StatusOr<MatrixView> Arena::matrix(Dtype dtype, int64_t rows, int64_t cols) {
  ACCORD_ASSIGN_OR_RETURN(void* p, take(static_cast<size_t>(rows * cols * size_of(dtype))));
  return MatrixView{p, dtype, rows, cols, cols};
}

void Arena::rewind(size_t mark) {
  assert(mark <= used_);
  used_ = mark;
}

}  // namespace accord
