// Rows and columns that move (copy_cuda.hpp).
#include <algorithm>
#include <cstring>

#include "kernels/copy/copy_cuda.hpp"
#include "kernels/copy/read_cuda.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

// Row r of x goes to row `to(r)` of y.
struct Targets {
  Targets(const Launch& launch, const int32_t* to_rows, int64_t count, int64_t y_rows)
      : rows(launch.maybe(to_rows, count)) {
    for (int64_t r = 0; rows != nullptr && r < count; ++r) {
      launch.needs(rows[r] >= 0 && rows[r] < y_rows, "rows of y");
    }
    launch.needs(rows != nullptr || count <= y_rows, "a row of y for each row of x");
  }
  int64_t operator()(int64_t r) const { return rows == nullptr ? r : rows[r]; }
  const int32_t* rows;
};

std::byte* element(const MatrixView& x, int64_t row, int64_t col) {
  return static_cast<std::byte*>(x.data) + (row * x.stride + col) * size_of(x.dtype);
}

}  // namespace

void scatter_rows(MatrixView x, const int32_t* to_rows, MatrixView y, StreamHandle stream) {
  if (emulation::recorded(stream, scatter_rows, x, to_rows, y)) return;
  const Launch launch("scatter_rows", stream);
  launch.needs(x.cols == y.cols && (to_rows != nullptr || x.rows == 0), "one width, and rows to go to");
  copy_columns(x, {1, x.cols, 0, 0, 0, 0}, to_rows, y, stream);
}

void copy_columns(MatrixView x, const ColumnGroups& columns, const int32_t* to_rows, MatrixView y,
                  StreamHandle stream) {
  if (emulation::recorded(stream, copy_columns, x, columns, to_rows, y)) return;
  const Launch launch("copy_columns", stream);
  launch.needs(x.dtype == y.dtype && columns.groups * columns.count * size_of(x.dtype) < (int64_t{1} << 31),
               "x and y of one dtype, and less than 2^31 bytes a row");
  if (x.rows == 0 || columns.groups == 0 || columns.count == 0) return;
  const auto within = [&](int64_t first, int64_t stride, int64_t cols) {
    const int64_t last = first + (columns.groups - 1) * stride;
    return first >= 0 && last >= 0 && std::max(first, last) + columns.count <= cols;
  };
  launch.needs(within(columns.x_first, columns.x_stride, x.cols), "columns of x");
  launch.needs(within(columns.y_first, columns.y_stride, y.cols), "columns of y");
  const MatrixView from = launch.at(x);
  const MatrixView to = launch.at(y);
  const Targets target(launch, to_rows, x.rows, y.rows);
  const auto bytes = static_cast<size_t>(columns.count * size_of(x.dtype));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t g = 0; g < columns.groups; ++g) {
      std::memmove(element(to, target(r), columns.y_first + g * columns.y_stride),
                   element(from, r, columns.x_first + g * columns.x_stride), bytes);
    }
  }
}

void plain_read(const GemmWeight* experts, int32_t count, int64_t data_bytes, int64_t scale_bytes,
                uint32_t* sink, StreamHandle stream) {
  const Launch launch("plain_read", stream);
  launch.needs(data_bytes % 16 == 0 && scale_bytes % 16 == 0, "whole loads of 16 bytes");
  const GemmWeight* const list = launch.at(experts, count);
  uint32_t sum = 0;
  for (int64_t e = 0; e < count; ++e) {
    const auto* const data = launch.at(static_cast<const uint8_t*>(list[e].data), data_bytes);
    for (int64_t i = 0; i < data_bytes; ++i) sum ^= data[i];
    if (scale_bytes == 0) continue;
    const uint8_t* const scales = launch.at(list[e].scales, scale_bytes);
    for (int64_t i = 0; i < scale_bytes; ++i) sum ^= scales[i];
  }
  *launch.at(sink, 1) = sum;
}

}  // namespace accord::kernels::cuda
