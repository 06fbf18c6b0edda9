// y = T(gate / (1 + exp(-gate)) * up): gate, up, y [rows, cols]. exp is exp_scalar (math/exp_log.hpp), so the
// bits are the CPU's. Fused with MXFP8 rows or NVFP4 per token, the rows stay in registers
// (formats/row_kernel.cuh).
#include "kernels/formats/row_kernel.cuh"
#include "kernels/swiglu/swiglu_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const T* gate, int64_t gate_stride, const T* up, int64_t up_stride, T* y, int64_t y_stride,
                  int64_t rows, int64_t cols) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t per_row = cols / kWidth;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * per_row; i += step) {
    const int64_t r = i / per_row;
    const int64_t c = (i - r * per_row) * kWidth;
    if constexpr (kWidth == 1) {
      y[r * y_stride + c] = from_float<T>(
          gpu::silu_times(to_float(gate[r * gate_stride + c]), to_float(up[r * up_stride + c])));
    } else {
      float a[kWidth];
      float b[kWidth];
      gpu::unpack<T>(gpu::load16(gate + r * gate_stride + c), a);
      gpu::unpack<T>(gpu::load16(up + r * up_stride + c), b);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        a[j] = gpu::silu_times(a[j], b[j]);
      }
      gpu::store16(y + r * y_stride + c, gpu::pack<T>(a));
    }
  }
}

template <class T>
void launch(MatrixView gate, MatrixView up, MatrixView y, StreamHandle stream) {
  constexpr int kWidth = gpu::kVector<T>;
  const bool vector = gpu::is_vectorizable(gate) && gpu::is_vectorizable(up) && gpu::is_vectorizable(y);
  const int64_t work = gpu::ceil_div(gate.rows * gate.cols, kThreads * (vector ? kWidth : 1));
  const unsigned grid = gpu::strided_grid(work, kBlocksPerSm);
  const auto run = [&](auto kernel) {
    gpu::launch_overlapped(kernel, grid, kThreads, 0, stream, static_cast<const T*>(gate.data), gate.stride,
                           static_cast<const T*>(up.data), up.stride, static_cast<T*>(y.data), y.stride,
                           gate.rows, gate.cols);
  };
  vector ? run(swiglu_kernel<T, kWidth>) : run(swiglu_kernel<T, 1>);
  check_launch("swiglu");
}

gpu::RowInput<BF16> input_of(MatrixView gate, MatrixView up) {
  require(gate.dtype == Dtype::kBF16 && up.dtype == Dtype::kBF16 && gate.cols == up.cols,
          "gate.dtype == Dtype::kBF16 && up.dtype == Dtype::kBF16 && gate.cols == up.cols");
  require(gpu::is_vectorizable(gate) && gpu::is_vectorizable(up) && gpu::fits_rows(gate.cols),
          "gpu::is_vectorizable(gate) && gpu::is_vectorizable(up) && gpu::fits_rows(gate.cols)");
  return {static_cast<const BF16*>(gate.data),
          gate.stride,
          static_cast<const BF16*>(up.data),
          up.stride,
          nullptr,
          0.0F,
          nullptr,
          nullptr,
          0};
}

}  // namespace

void swiglu(MatrixView gate, MatrixView up, MatrixView y, StreamHandle stream) {
  require(gate.dtype == up.dtype && gate.dtype == y.dtype && gate.cols == up.cols && gate.cols == y.cols,
          "gate.dtype == up.dtype && gate.dtype == y.dtype && gate.cols == up.cols && gate.cols == y.cols");
  if (gate.rows == 0 || gate.cols == 0) {
    return;
  }
  gate.dtype == Dtype::kBF16 ? launch<BF16>(gate, up, y, stream) : launch<float>(gate, up, y, stream);
}

void swiglu_mxfp8(MatrixView gate, MatrixView up, MatrixView y, uint8_t* q, uint8_t* scale,
                  StreamHandle stream, BF16* operand) {
  require(gate.cols % 32 == 0, "gate.cols % 32 == 0");
  if (gate.rows == 0) {
    return;
  }
  const gpu::RowOutput<BF16> out{static_cast<BF16*>(y.data), y.stride, q, scale, nullptr, 0, false, operand};
  gpu::launch_rows<BF16, gpu::Source::kSwiglu, gpu::Sink::kMxfp8, false>(input_of(gate, up), out, gate.rows,
                                                                         gate.cols, stream);
  check_launch("swiglu_mxfp8");
}

void swiglu_nvfp4(MatrixView gate, MatrixView up, MatrixView y, const formats::Nvfp4Output& out,
                  FourOverSix four_over_six, int range, StreamHandle stream, BF16* operand) {
  if (gate.rows == 0) {
    return;
  }
  const gpu::RowOutput<BF16> row_out{
      static_cast<BF16*>(y.data),         y.stride, out.q, out.scale, out.amax, range,
      four_over_six == FourOverSix::kMae, operand};
  const gpu::RowInput<BF16> in = input_of(gate, up);
  if (four_over_six == FourOverSix::kNone) {
    gpu::launch_rows<BF16, gpu::Source::kSwiglu, gpu::Sink::kNvfp4, false>(in, row_out, gate.rows, gate.cols,
                                                                           stream);
  } else {
    gpu::launch_rows<BF16, gpu::Source::kSwiglu, gpu::Sink::kNvfp4, true>(in, row_out, gate.rows, gate.cols,
                                                                          stream);
  }
  check_launch("swiglu_nvfp4");
}

}  // namespace accord::kernels::cuda
