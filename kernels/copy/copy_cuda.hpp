#pragma once
// Rows and columns moved on the device, bytes unchanged, in stream order. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// y[to_rows[r]] = x[r]; no two rows go to the same place.
void scatter_rows(MatrixView x, const int32_t* to_rows, MatrixView y, StreamHandle stream);

// For every row r and group g: columns [y_first + g * y_stride, +count) of row to_rows[r] of y (null: row r)
// = columns [x_first + g * x_stride, +count) of row r of x. Elements of x.dtype.
struct ColumnGroups {
  int64_t groups = 1;
  int64_t count = 0;
  int64_t x_first = 0, x_stride = 0;
  int64_t y_first = 0, y_stride = 0;
};
void copy_columns(MatrixView x, const ColumnGroups& columns, const int32_t* to_rows, MatrixView y,
                  StreamHandle stream);

}  // namespace accord::kernels::cuda
