#pragma once
// A borrowed dense tensor: pointer, dtype, shape, strides (in elements). Owns nothing.
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"

namespace accord {

enum class DeviceKind : uint8_t { kCpu, kCuda };

// Maps a C++ element type to its Dtype.
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::kF32;
};
template <>
struct DtypeOf<BF16> {
  static constexpr Dtype value = Dtype::kBF16;
};
template <>
struct DtypeOf<uint8_t> {
  static constexpr Dtype value = Dtype::kU8;
};
template <>
struct DtypeOf<int32_t> {
  static constexpr Dtype value = Dtype::kI32;
};

// Row-major matrix view [rows, cols]; consecutive rows are `stride` elements apart, columns are contiguous.
struct MatrixView {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  template <class T>
  T* row(int64_t r) const {
    assert(dtype == DtypeOf<T>::value);
    return static_cast<T*>(data) + r * stride;
  }
  MatrixView slice_rows(int64_t begin, int64_t count) const {
    assert(begin >= 0 && begin + count <= rows);
    MatrixView view = *this;
    view.data = static_cast<std::byte*>(data) + begin * stride * size_of(dtype);
    view.rows = count;
    return view;
  }
  MatrixView slice_cols(int64_t begin, int64_t count) const {
    assert(begin >= 0 && begin + count <= cols);
    MatrixView view = *this;
    view.data = static_cast<std::byte*>(data) + begin * size_of(dtype);
    view.cols = count;
    return view;
  }
};

template <class T>
MatrixView matrix_view(T* data, int64_t rows, int64_t cols) {
  return {data, DtypeOf<T>::value, rows, cols, cols};
}

}  // namespace accord
