// dtable[tokens[i]] += the rows of dx that hold tokens[i], one after the other in ascending order: dx [T,H],
// dtable [V,H] fp32. A warp adds up a strip of columns of one token; a frequent token's strips lie in
// different blocks.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/embedding/embedding_backward_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / gpu::kWarp;
constexpr int kWide = 4;
constexpr int kAhead = 8;  // rows loaded before they are added

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(TokenRows batch, const float* dx, int64_t hidden, int64_t strips,
                              float* dtable) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / gpu::kWarp;
  const int64_t strip = item / batch.count;
  const int64_t i = item - strip * batch.count;
  if (strip >= strips) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int64_t column = (strip * gpu::kWarp + lane) * kWidth;
  const bool mine = column < hidden;
  const float* in = dx + column;
  float* out = dtable + batch.tokens[i] * hidden + column;
  float sum[kWidth] = {};
  if (mine) {
    gpu::load_floats(out, sum);
  }
  const int32_t end = batch.offsets[i + 1];
  for (int32_t first = batch.offsets[i]; first < end; first += gpu::kWarp) {
    const int32_t row = first + lane < end ? batch.rows[first + lane] : 0;
    const int count = end - first < gpu::kWarp ? end - first : gpu::kWarp;
    for (int begin = 0; begin < count; begin += kAhead) {
      float v[kAhead][kWidth];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int32_t r = __shfl_sync(gpu::kFullMask, row, begin + j);
        if (mine && begin + j < count) {
          gpu::load_floats(in + r * hidden, v[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (begin + j < count) {
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            sum[c] = sum[c] + v[j][c];
          }
        }
      }
    }
  }
  if (mine) {
    gpu::store_rounded(out, sum);
  }
}

}  // namespace

void embedding_backward(const TokenRows& batch, const float* dx, int64_t hidden, float* dtable,
                        StreamHandle stream) {
  if (batch.count == 0 || hidden == 0) {
    return;
  }
  const bool vector = hidden % kWide == 0 && gpu::is_aligned16(dx) && gpu::is_aligned16(dtable);
  const int64_t strips = gpu::ceil_div(hidden, gpu::kWarp * (vector ? kWide : 1));
  const auto grid = static_cast<unsigned>(gpu::ceil_div(strips * batch.count, kWarps));
  if (vector) {
    embedding_backward_kernel<kWide><<<grid, kThreads, 0, stream>>>(batch, dx, hidden, strips, dtable);
  } else {
    embedding_backward_kernel<1><<<grid, kThreads, 0, stream>>>(batch, dx, hidden, strips, dtable);
  }
  check_launch("embedding_backward");
}

}  // namespace accord::kernels::cuda
