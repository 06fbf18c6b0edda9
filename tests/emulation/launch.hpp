#pragma once
// What an emulated launch function does first: its stream must be one of the calling thread's device, and
// every pointer memory of that device, as long as the launch says. Anything else ends the process with the
// kernel's name: on a GPU it would be an illegal address.
#include <cstddef>
#include <cstdint>

#include "device/launch.hpp"
#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::emulation {

class Launch {
 public:
  Launch(const char* kernel, StreamHandle stream);

  // Where `count` elements from p on lie.
  template <class T>
  T* at(T* p, int64_t count) const {
    return static_cast<T*>(bytes_at(p, count * static_cast<int64_t>(sizeof(T)), alignof(T)));
  }
  void* bytes(const void* p, int64_t count) const { return bytes_at(p, count, 1); }
  // Null stays null.
  template <class T>
  T* maybe(T* p, int64_t count) const {
    return p == nullptr ? nullptr : at(p, count);
  }
  MatrixView at(const MatrixView& x) const;
  // Rows of x that are read or written: [0, rows), which may be more or fewer than x.rows.
  MatrixView at(const MatrixView& x, int64_t rows) const;

  // Scratch memory: poisoned, so that nothing else can live there.
  template <class T>
  void scratch(T* p, int64_t count) const {
    poison(p, count * static_cast<int64_t>(sizeof(T)));
  }

  void needs(bool holds, const char* condition) const;
  void aligned(const void* p, size_t bytes, const char* name) const;
  // Every row of x begins at a multiple of `bytes`.
  void aligned_rows(const MatrixView& x, size_t bytes, const char* name) const;

 private:
  void* bytes_at(const void* p, int64_t bytes, size_t alignment) const;
  void poison(const void* p, int64_t bytes) const;

  const char* kernel_;
  int device_;
};

}  // namespace accord::emulation
