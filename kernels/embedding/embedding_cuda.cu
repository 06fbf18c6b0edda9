// y[t] = table[tokens[t]]          table [V,H] bf16, y [T,H] bf16 or fp32
// y    = T(x + delta)              [rows, cols], T the dtype of all three
// Bits: copies, exact widening, one addition rounded once; as embedding_cpu.cpp.
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/embedding/embedding_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

// Elements of all rows as one range, kWidth at a time.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const T* x, int64_t x_stride, const T* delta, int64_t delta_stride, T* y, int64_t y_stride,
               int64_t rows, int64_t cols) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t per_row = cols / kWidth;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * per_row; i += step) {
    const int64_t r = i / per_row;
    const int64_t c = (i - r * per_row) * kWidth;
    if constexpr (kWidth == 1) {
      y[r * y_stride + c] =
          from_float<T>(to_float(x[r * x_stride + c]) + to_float(delta[r * delta_stride + c]));
    } else {
      float a[kWidth];
      float b[kWidth];
      gpu::unpack<T>(gpu::load16(x + r * x_stride + c), a);
      gpu::unpack<T>(gpu::load16(delta + r * delta_stride + c), b);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        a[j] = a[j] + b[j];
      }
      gpu::store16(y + r * y_stride + c, gpu::pack<T>(a));
    }
  }
}

template <class T>
void add(MatrixView x, MatrixView delta, MatrixView y, StreamHandle stream) {
  constexpr int kWidth = gpu::kVector<T>;
  const bool vector = gpu::is_vectorizable(x) && gpu::is_vectorizable(delta) && gpu::is_vectorizable(y);
  const int64_t work = gpu::ceil_div(x.rows * x.cols, kThreads * (vector ? kWidth : 1));
  const unsigned grid = gpu::strided_grid(work, kBlocksPerSm);
  const auto launch = [&](auto kernel) {
    gpu::launch_overlapped(kernel, grid, kThreads, 0, stream, static_cast<const T*>(x.data), x.stride,
                           static_cast<const T*>(delta.data), delta.stride, static_cast<T*>(y.data), y.stride,
                           x.rows, x.cols);
  };
  vector ? launch(add_kernel<T, kWidth>) : launch(add_kernel<T, 1>);
  check_launch("add_rows");
}

// One block a token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const BF16* table, const int32_t* tokens, T* y, int64_t y_stride, int64_t cols) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const BF16* row = table + static_cast<int64_t>(tokens[blockIdx.x]) * cols;
  T* out = y + static_cast<int64_t>(blockIdx.x) * y_stride;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    if constexpr (sizeof(T) == sizeof(BF16)) {
      out[c] = row[c];
    } else {
      out[c] = to_float(row[c]);
    }
  }
}

}  // namespace

void embed_rows(const BF16* table, const int32_t* tokens, int64_t num_tokens, MatrixView y,
                StreamHandle stream) {
  if (num_tokens == 0 || y.cols == 0) {
    return;
  }
  const auto grid = static_cast<unsigned>(num_tokens);
  if (y.dtype == Dtype::kBF16) {
    gpu::launch_overlapped(embed_kernel<BF16>, grid, kThreads, 0, stream, table, tokens,
                           static_cast<BF16*>(y.data), y.stride, y.cols);
  } else {
    gpu::launch_overlapped(embed_kernel<float>, grid, kThreads, 0, stream, table, tokens,
                           static_cast<float*>(y.data), y.stride, y.cols);
  }
  check_launch("embed_rows");
}

void add_rows(MatrixView x, MatrixView delta, MatrixView y, StreamHandle stream) {
  require(x.dtype == delta.dtype && x.dtype == y.dtype && x.cols == delta.cols && x.cols == y.cols,
          "x.dtype == delta.dtype && x.dtype == y.dtype && x.cols == delta.cols && x.cols == y.cols");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  x.dtype == Dtype::kBF16 ? add<BF16>(x, delta, y, stream) : add<float>(x, delta, y, stream);
}

}  // namespace accord::kernels::cuda
