// log p = (z - max) - log(sum exp(z - max)), z = logit / temperature: logits [rows, vocab] fp32 -> [rows].
//
// The sum keeps the contract's sixteen lanes: the block computes a tile's exponentials in parallel, then sixteen
// threads add them up in order, while the others already work on the next tile. A second row of sixteen threads
// adds p * (z - max) for the entropy.
#include <cassert>

#include "kernels/cuda/lanes.cuh"
#include "kernels/logprob/logprob_cuda.hpp"
#include "kernels/math/exp_log.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::kSumLanes;
using gpu::kWarp;

constexpr int kThreads = 512;
constexpr int kTile = 2048;

// Sums in sixteen-lane order over a shared tile, kept across tiles: thread `lane` of sixteen.
__device__ inline float add_tile(const float* tile, int count, int lane, float sum) {
  int i = lane;
  constexpr int kUnroll = 16;
  for (; i + (kUnroll - 1) * kSumLanes < count; i += kUnroll * kSumLanes) {
    float v[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      v[j] = tile[i + j * kSumLanes];
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      sum = sum + v[j];
    }
  }
  for (; i < count; i += kSumLanes) {
    sum = sum + tile[i];
  }
  return sum;
}

// max z of the row, NaN ignored, from -inf.
__device__ inline float max_of_row(const float* logits, int64_t vocab, float temperature, float* shared) {
  float m = __uint_as_float(0xff800000u);
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    m = fmaxf(m, logits[i] / temperature);
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    m = fmaxf(m, __shfl_xor_sync(gpu::kFullMask, m, offset));
  }
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = m;
  }
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) {
    m = fmaxf(m, shared[i]);
  }
  __syncthreads();
  return m;
}

template <bool kEntropy>
__global__ void __launch_bounds__(kThreads)
    logprob_kernel(const float* logits, int64_t stride, int64_t vocab, const float* temperatures, const int32_t* tokens,
                   float* logprobs, float* entropies) {
  __shared__ float weights[2][kTile];
  __shared__ float products[kEntropy ? 2 : 1][kEntropy ? kTile : 1];
  __shared__ float lanes[2 * kSumLanes];
  const int64_t row = blockIdx.x;
  const float* in = logits + row * stride;
  const float temperature = temperatures[row];
  const float max = max_of_row(in, vocab, temperature, lanes);
  // The last warp adds: lanes 0 to 15 the weights, 16 to 31 the products.
  constexpr int kAdder = kThreads / kWarp - 1;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0.0F;
  int buffer = 0;
  for (int64_t begin = 0; begin < vocab; begin += kTile, buffer ^= 1) {
    const int count = static_cast<int>(vocab - begin < kTile ? vocab - begin : kTile);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const float d = in[begin + i] / temperature - max;
      const float p = exp_scalar(d);
      weights[buffer][i] = p;
      if constexpr (kEntropy) {
        products[buffer][i] = p == 0.0F ? 0.0F : p * d;  // also where d is -inf; a NaN stays
      }
    }
    __syncthreads();
    if (warp == kAdder) {
      if (lane < kSumLanes) {
        sum = add_tile(weights[buffer], count, lane, sum);
      } else if constexpr (kEntropy) {
        sum = add_tile(products[buffer], count, lane - kSumLanes, sum);
      }
    }
    // The other buffer is free: its adder went through the barrier above after it.
  }
  if (warp == kAdder) {
    const float folded = gpu::fold_lanes_shuffled(sum);
    const float total = __shfl_sync(gpu::kFullMask, folded, 0);
    const float weighted = __shfl_sync(gpu::kFullMask, folded, kSumLanes);
    if (lane == 0) {
      const float log_sum = log_scalar(total);
      if (logprobs != nullptr) {
        logprobs[row] = (in[tokens[row]] / temperature - max) - log_sum;
      }
      if constexpr (kEntropy) {
        entropies[row] = log_sum - weighted / total;
      }
    }
  }
}

}  // namespace

void token_logprobs(MatrixView logits, const float* temperatures, const int32_t* tokens, float* logprobs,
                    float* entropies, StreamHandle stream) {
  assert(logits.dtype == Dtype::kF32);
  if (logits.rows == 0 || logits.cols == 0) {
    return;
  }
  const auto grid = static_cast<unsigned>(logits.rows);
  const auto* data = static_cast<const float*>(logits.data);
  if (entropies != nullptr) {
    logprob_kernel<true><<<grid, kThreads, 0, stream>>>(data, logits.stride, logits.cols, temperatures, tokens, logprobs,
                                                        entropies);
  } else {
    logprob_kernel<false><<<grid, kThreads, 0, stream>>>(data, logits.stride, logits.cols, temperatures, tokens, logprobs,
                                                         entropies);
  }
  check_launch("token_logprobs");
}

}  // namespace accord::kernels::cuda
