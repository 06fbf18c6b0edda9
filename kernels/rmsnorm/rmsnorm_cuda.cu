// y = weight * T(x * inv), inv = 1 / sqrt(sum(x^2) / n + eps): x, y [rows, n]. The sum takes the sixteen
// lanes' order by sixteen threads, which read the row from the cache where the row's own loads have brought
// it.
#include "kernels/rmsnorm/norm_input.cuh"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of any length and alignment, one block a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    any_row_kernel(const T* x, int64_t x_stride, const BF16* weight, float eps, int64_t n, T* y,
                   int64_t y_stride, float* inv_rms) {
  __shared__ float lanes[gpu::kSumLanes];
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t row = blockIdx.x;
  const T* in = x + row * x_stride;
  if (threadIdx.x < gpu::kSumLanes) {
    lanes[threadIdx.x] = gpu::lane_of_squares(in, n, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  const float inv = 1.0F / sqrtf(gpu::fold_lanes(lanes) / static_cast<float>(n) + eps);
  if (threadIdx.x == 0 && inv_rms != nullptr) {
    inv_rms[row] = inv;
  }
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const T rounded = from_float<T>(to_float(in[i]) * inv);
    y[row * y_stride + i] = from_float<T>(to_float(weight[i]) * to_float(rounded));
  }
}

// x + delta, normalized.
void launch_sum(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms,
                const Residual& residual, StreamHandle stream) {
  const gpu::RowInput<BF16> in = gpu::norm_input(x, weight, eps, inv_rms, residual);
  require(gpu::is_vectorizable(y), "gpu::is_vectorizable(y)");
  gpu::RowOutput<BF16> out;
  out.y = static_cast<BF16*>(y.data);
  out.y_stride = y.stride;
  gpu::launch_rows<BF16, gpu::Source::kAddRmsNorm, gpu::Sink::kValues, false>(in, out, x.rows, x.cols,
                                                                              stream);
  check_launch("rms_norm");
}

template <class T>
void launch(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, StreamHandle stream) {
  const bool aligned =
      gpu::is_vectorizable(x) && gpu::is_vectorizable(y) && reinterpret_cast<uintptr_t>(weight) % 16 == 0;
  if (aligned && gpu::fits_rows(x.cols)) {
    const gpu::RowInput<T> in{static_cast<const T*>(x.data), x.stride, nullptr, 0, weight, eps, inv_rms};
    gpu::RowOutput<T> out;
    out.y = static_cast<T*>(y.data);
    out.y_stride = y.stride;
    gpu::launch_rows<T, gpu::Source::kRmsNorm, gpu::Sink::kValues, false>(in, out, x.rows, x.cols, stream);
  } else {
    gpu::launch_overlapped(any_row_kernel<T>, static_cast<unsigned>(x.rows), kThreads, 0, stream,
                           static_cast<const T*>(x.data), x.stride, weight, eps, x.cols,
                           static_cast<T*>(y.data), y.stride, inv_rms);
  }
  check_launch("rms_norm");
}

}  // namespace

void rms_norm(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, StreamHandle stream,
              const Residual& residual) {
  require(x.dtype == y.dtype && x.rows <= y.rows && x.cols == y.cols,
          "x.dtype == y.dtype && x.rows <= y.rows && x.cols == y.cols");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  if (residual.delta.data != nullptr) {
    return launch_sum(x, weight, eps, y, inv_rms, residual, stream);
  }
  x.dtype == Dtype::kBF16 ? launch<BF16>(x, weight, eps, y, inv_rms, stream)
                          : launch<float>(x, weight, eps, y, inv_rms, stream);
}

}  // namespace accord::kernels::cuda
