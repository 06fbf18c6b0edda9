// y[i] = x[i] cos - x[i+half] sin;  y[i+half] = x[i+half] cos + x[i] sin, of every head of x [T, heads * 2 *
// half]. Two products and one sum in fp32, rounded once: the CPU's bits. A thread turns kWidth pairs of one
// head.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/rope/rope_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

struct Heads {
  int64_t rows;
  int64_t heads;
  int64_t x_head;  // elements from one head to the next
  int64_t y_head;
};

template <class T, int kWidth>
__device__ inline void load_values(const T* p, float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    x[0] = to_float(p[0]);
  } else {
    gpu::unpack<T>(gpu::load16(p), x);
  }
}

template <class T, int kWidth>
__device__ inline void store_values(T* p, const float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    p[0] = from_float<T>(x[0]);
  } else {
    gpu::store16(p, gpu::pack<T>(x));
  }
}

template <class T, int kWidth, bool kNeighbours>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(const T* x, int64_t x_stride, Heads shape, const int32_t* positions, RopeTableView table,
                T* y, int64_t y_stride, const int32_t* y_rows) {
  static_assert(!kNeighbours || kWidth == 1);
  const int64_t half = table.half;
  const int64_t per_head = half / kWidth;
  const int64_t per_row = shape.heads * per_head;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < shape.rows * per_row;
       i += step) {
    const int64_t t = i / per_row;
    const int64_t head = (i - t * per_row) / per_head;
    const int64_t c = (i - t * per_row - head * per_head) * kWidth;
    const T* in = x + t * x_stride + head * shape.x_head;
    T* out = y + (y_rows == nullptr ? t : y_rows[t]) * y_stride + head * shape.y_head + c;
    const int64_t at = positions[t] * half + c;
    float a[kWidth];
    float b[kWidth];
    load_values<T>(in + (kNeighbours ? 2 * c : c), a);
    load_values<T>(in + (kNeighbours ? 2 * c + 1 : c + half), b);
    float first[kWidth];
    float second[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float cos = table.cos[at + j];
      const float sin = table.sin[at + j];
      first[j] = a[j] * cos - b[j] * sin;
      second[j] = b[j] * cos + a[j] * sin;
    }
    store_values<T>(out, first);
    store_values<T>(out + half, second);
  }
}

template <class T>
void launch(MatrixView x, const Heads& shape, bool neighbours, const int32_t* positions,
            const RopeTableView& table, MatrixView y, const int32_t* y_rows, StreamHandle stream) {
  constexpr int kWidth = gpu::kVector<T>;
  const auto aligned = [](const MatrixView& m, int64_t head) {
    constexpr int64_t kBytes = 16;
    const int64_t element = size_of(m.dtype);
    return reinterpret_cast<uintptr_t>(m.data) % kBytes == 0 && m.stride * element % kBytes == 0 &&
           head * element % kBytes == 0;
  };
  const bool vector =
      !neighbours && table.half % kWidth == 0 && aligned(x, shape.x_head) && aligned(y, shape.y_head);
  const int64_t pairs = shape.rows * shape.heads * table.half;
  const unsigned grid =
      gpu::strided_grid(gpu::ceil_div(pairs, kThreads * (vector ? kWidth : 1)), kBlocksPerSm);
  const auto run = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, stream>>>(static_cast<const T*>(x.data), x.stride, shape, positions, table,
                                          static_cast<T*>(y.data), y.stride, y_rows);
  };
  if (neighbours) {
    run(rope_kernel<T, 1, true>);
  } else {
    vector ? run(rope_kernel<T, kWidth, false>) : run(rope_kernel<T, 1, false>);
  }
  check_launch("apply_rope");
}

}  // namespace

void apply_rope(MatrixView x, const int32_t* positions, const RopeTableView& table, MatrixView y,
                const int32_t* y_rows, StreamHandle stream) {
  const int64_t dim = 2 * table.half;
  require(x.cols == y.cols && x.cols % dim == 0, "x.cols == y.cols && x.cols % dim == 0");
  apply_rope_heads(x, {x.cols / dim, dim, dim, false}, positions, table, y, y_rows, stream);
}

void apply_rope_heads(MatrixView x, const RopeHeadsLayout& layout, const int32_t* positions,
                      const RopeTableView& table, MatrixView y, const int32_t* y_rows, StreamHandle stream) {
  require(x.dtype == y.dtype, "x.dtype == y.dtype");
  if (x.rows == 0 || layout.heads == 0 || table.half == 0) {
    return;
  }
  const Heads shape{x.rows, layout.heads, layout.x_stride, layout.y_stride};
  x.dtype == Dtype::kBF16 ? launch<BF16>(x, shape, layout.neighbours, positions, table, y, y_rows, stream)
                          : launch<float>(x, shape, layout.neighbours, positions, table, y, y_rows, stream);
}

}  // namespace accord::kernels::cuda
