// Row r, group g: y[to(r)][y_first + g y_stride + i] = x[r][x_first + g x_stride + i], i < count; to(r) = r
// where no rows are named. Moved in the largest units, of 16 bytes to one, that divide every start and width.
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/cuda/overlap.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

// Strides and widths in units.
struct Move {
  const void* x;
  void* y;
  const int32_t* to_rows;
  int64_t rows;
  int64_t x_row, y_row;
  int groups, count;
  int64_t x_first, x_stride, y_first, y_stride;
};

// threadIdx.x runs along a row.
template <class Unit>
__global__ void __launch_bounds__(kThreads) move_kernel(const Move m) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const int per_row = m.groups * m.count;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; r < m.rows; r += step) {
    const int64_t to = m.to_rows == nullptr ? r : m.to_rows[r];
    const Unit* x = static_cast<const Unit*>(m.x) + r * m.x_row + m.x_first;
    Unit* y = static_cast<Unit*>(m.y) + to * m.y_row + m.y_first;
    for (int i = static_cast<int>(threadIdx.x); i < per_row; i += static_cast<int>(blockDim.x)) {
      const int group = i / m.count;
      const int column = i - group * m.count;
      y[group * m.y_stride + column] = x[group * m.x_stride + column];
    }
  }
}

template <class Unit>
void launch(Move m, StreamHandle stream) {
  constexpr int64_t kUnit = sizeof(Unit);
  for (int64_t* bytes : {&m.x_row, &m.y_row, &m.x_first, &m.x_stride, &m.y_first, &m.y_stride}) {
    *bytes /= kUnit;
  }
  m.count /= static_cast<int>(kUnit);
  unsigned along = 1;
  while (along < kThreads && along < static_cast<unsigned>(m.groups * m.count)) {
    along *= 2;
  }
  const dim3 block(along, kThreads / along);
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(m.rows, block.y), kBlocksPerSm);
  gpu::launch_overlapped(move_kernel<Unit>, grid, block, 0, stream, m);
  check_launch("copy_columns");
}

}  // namespace

void copy_columns(MatrixView x, const ColumnGroups& columns, const int32_t* to_rows, MatrixView y,
                  StreamHandle stream) {
  require(x.dtype == y.dtype && columns.groups * columns.count * size_of(x.dtype) < (int64_t{1} << 31),
          "x.dtype == y.dtype && columns.groups * columns.count * size_of(x.dtype) < 2^31");
  if (x.rows == 0 || columns.groups == 0 || columns.count == 0) {
    return;
  }
  const int64_t size = size_of(x.dtype);
  const bool one_group = columns.groups == 1;  // then the strides between groups mean nothing
  const Move m{x.data,
               y.data,
               to_rows,
               x.rows,
               x.stride * size,
               y.stride * size,
               static_cast<int>(columns.groups),
               static_cast<int>(columns.count * size),
               columns.x_first * size,
               one_group ? 0 : columns.x_stride * size,
               columns.y_first * size,
               one_group ? 0 : columns.y_stride * size};
  const uint64_t all =
      reinterpret_cast<uintptr_t>(m.x) | reinterpret_cast<uintptr_t>(m.y) |
      static_cast<uint64_t>(m.x_row | m.y_row | m.count | m.x_first | m.x_stride | m.y_first | m.y_stride);
  if (all % 16 == 0) {
    launch<uint4>(m, stream);
  } else if (all % 8 == 0) {
    launch<uint2>(m, stream);
  } else if (all % 4 == 0) {
    launch<uint32_t>(m, stream);
  } else if (all % 2 == 0) {
    launch<uint16_t>(m, stream);
  } else {
    launch<uint8_t>(m, stream);
  }
}

void scatter_rows(MatrixView x, const int32_t* to_rows, MatrixView y, StreamHandle stream) {
  require(x.cols == y.cols, "x.cols == y.cols");
  copy_columns(x, {1, x.cols, 0, 0, 0, 0}, to_rows, y, stream);
}

}  // namespace accord::kernels::cuda
