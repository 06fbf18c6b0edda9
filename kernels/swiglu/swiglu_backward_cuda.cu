// s = 1 / (1 + exp(-gate)):  dup = dact gate s;  dgate = dact up s (1 + gate (1 - s)); gate, up bf16 [R,I],
// dact fp32. The operations and the exp of swiglu_backward.cpp, each result rounded once to bf16.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/math/exp_log.hpp"
#include "kernels/swiglu/swiglu_backward_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int kWide = gpu::kVector<BF16>;

// Leaves dgate in `gate` and dup in `up`.
__device__ inline void derive(float& gate, float& up, float dact) {
  const float s = 1.0F / (1.0F + exp_scalar(0.0F - gate));
  const float slope = s * __fmaf_rn(gate, 1.0F - s, 1.0F);
  const float dgate = dact * up * slope;
  up = dact * (gate * s);
  gate = dgate;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const BF16* gate, int64_t gate_stride, const BF16* up, int64_t up_stride,
                           const float* dact, BF16* dgate, BF16* dup, uint32_t count, uint32_t per_row) {
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    const uint32_t r = i / per_row;
    const uint32_t c = (i - r * per_row) * kWidth;
    const int64_t at = static_cast<int64_t>(i) * kWidth;
    float g[kWidth];
    float u[kWidth];
    float d[kWidth];
    if constexpr (kWidth == 1) {
      g[0] = to_float(gate[r * gate_stride + c]);
      u[0] = to_float(up[r * up_stride + c]);
    } else {
      const uint4 gates = gpu::load16(gate + r * gate_stride + c);
      const uint4 ups = gpu::load16(up + r * up_stride + c);
      gpu::unpack<BF16>(gates, g);
      gpu::unpack<BF16>(ups, u);
    }
    gpu::load_floats(dact + at, d);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      derive(g[j], u[j], d[j]);
    }
    gpu::store_rounded(dgate + at, g);
    gpu::store_rounded(dup + at, u);
  }
}

}  // namespace

void swiglu_backward(MatrixView gate, MatrixView up, const float* dact, BF16* dgate, BF16* dup,
                     StreamHandle stream) {
  require(
      gate.dtype == Dtype::kBF16 && up.dtype == Dtype::kBF16 && gate.rows == up.rows && gate.cols == up.cols,
      "gate and up are bf16 of one shape");
  if (gate.rows == 0 || gate.cols == 0) {
    return;
  }
  const bool vector = gpu::is_vectorizable(gate) && gpu::is_vectorizable(up) && gpu::is_aligned16(dact) &&
                      gpu::is_aligned16(dgate) && gpu::is_aligned16(dup);
  const int64_t per_row = gate.cols / (vector ? kWide : 1);
  const int64_t count = gate.rows * per_row;
  require(count < INT64_C(1) << 31, "vectors of a launch < 2^31");
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(count, kThreads), kBlocksPerSm);
  const auto run = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, stream>>>(static_cast<const BF16*>(gate.data), gate.stride,
                                          static_cast<const BF16*>(up.data), up.stride, dact, dgate, dup,
                                          static_cast<uint32_t>(count), static_cast<uint32_t>(per_row));
  };
  vector ? run(swiglu_backward_kernel<kWide>) : run(swiglu_backward_kernel<1>);
  check_launch("swiglu_backward");
}

}  // namespace accord::kernels::cuda
