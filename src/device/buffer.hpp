#pragma once
// Owned, 64-byte aligned host memory. Growing discards the content; capacity never shrinks.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "device/tensor_view.hpp"

namespace accord {

class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t bytes) { ensure(bytes); }

  void ensure(size_t bytes);  // throws std::bad_alloc
  void* data() const { return memory_.get(); }
  size_t capacity() const { return capacity_; }

  template <class T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  // A contiguous matrix in this buffer, which grows as needed.
  MatrixView matrix(Dtype dtype, int64_t rows, int64_t cols) {
    ensure(static_cast<size_t>(rows * cols * size_of(dtype)));
    return {memory_.get(), dtype, rows, cols, cols};
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t capacity_ = 0;
};

}  // namespace accord
