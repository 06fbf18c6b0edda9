// sort     ids [T*K] -> rows sorted by expert, then by position. One block an expert reads all ids: once to count
//          what comes before its rows, once to write them in ascending order. A maximum of 1024 experts and some
//          10^5 ids keep that within the cache.
// combine  y[t] = T(x[t] + T(sum over slots s ascending of weights[t][s] * down[slot_rows[t][s]])), by fused
//          multiply-adds from slot 0 on.
#include <cassert>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/moe/moe_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::kFullMask;
using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerSm = 8;

// The sum over the block, for every thread.
__device__ inline int block_sum(int v, int* shared) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    v += __shfl_xor_sync(kFullMask, v, offset);
  }
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = v;
  }
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < kWarps; ++i) {
    sum += shared[i];
  }
  __syncthreads();
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    sort_kernel(const int32_t* ids, int num_ids, int experts, int k, ExpertOrder order) {
  __shared__ int shared[kWarps];
  const int expert = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int before = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_ids; i += kThreads) {
    before += ids[i] < expert ? 1 : 0;
  }
  int next = block_sum(before, shared);
  if (threadIdx.x == 0) {
    order.expert_offsets[expert] = next;
    if (expert == experts - 1) {
      order.expert_offsets[experts] = num_ids;
    }
  }
  for (int begin = 0; begin < num_ids; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool mine = i < num_ids && ids[i] == expert;
    const uint32_t votes = __ballot_sync(kFullMask, mine);
    if (lane == 0) {
      shared[warp] = __popc(votes);
    }
    __syncthreads();
    int row = next + __popc(votes & ((1u << lane) - 1u));
    for (int w = 0; w < kWarps; ++w) {
      row += w < warp ? shared[w] : 0;
      next += shared[w];
    }
    __syncthreads();
    if (mine) {
      order.sorted_tokens[row] = i / k;
      order.sorted_slots[row] = i % k;
      order.slot_rows[i] = row;
    }
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads) gather_kernel(const Word* x, int64_t x_stride, const int32_t* sorted_tokens,
                                                          Word* y, int64_t y_stride, int64_t rows, int64_t words) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * words; i += step) {
    const int64_t row = i / words;
    const int64_t c = i - row * words;
    y[row * y_stride + c] = x[sorted_tokens[row] * x_stride + c];
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const T* x, int64_t x_stride, const T* down, int64_t down_stride, const float* weights,
                   const int32_t* slot_rows, int k, T* y, int64_t y_stride, int64_t rows, int64_t cols) {
  const int64_t per_row = cols / kWidth;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * per_row; i += step) {
    const int64_t t = i / per_row;
    const int64_t c = (i - t * per_row) * kWidth;
    float sum[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sum[j] = 0.0F;
    }
    for (int s = 0; s < k; ++s) {
      const float weight = weights[t * k + s];
      const T* row = down + slot_rows[t * k + s] * down_stride + c;
      float v[kWidth];
      if constexpr (kWidth == 1) {
        v[0] = to_float(row[0]);
      } else {
        gpu::unpack<T>(gpu::load16(row), v);
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sum[j] = __fmaf_rn(weight, v[j], sum[j]);
      }
    }
    const T* in = x + t * x_stride + c;
    T* out = y + t * y_stride + c;
    if constexpr (kWidth == 1) {
      out[0] = from_float<T>(to_float(in[0]) + to_float(from_float<T>(sum[0])));
    } else {
      float v[kWidth];
      gpu::unpack<T>(gpu::pack<T>(sum), sum);
      gpu::unpack<T>(gpu::load16(in), v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        v[j] = v[j] + sum[j];
      }
      gpu::store16(out, gpu::pack<T>(v));
    }
  }
}

template <class T>
void combine(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k, MatrixView y,
             StreamHandle stream) {
  constexpr int kWidth = gpu::kVector<T>;
  const bool vector = gpu::is_vectorizable(x) && gpu::is_vectorizable(down) && gpu::is_vectorizable(y);
  const int64_t work = gpu::ceil_div(x.rows * x.cols, kThreads * (vector ? kWidth : 1));
  const unsigned grid = gpu::strided_grid(work, kBlocksPerSm);
  const auto run = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, stream>>>(static_cast<const T*>(x.data), x.stride, static_cast<const T*>(down.data),
                                          down.stride, weights, slot_rows, static_cast<int>(k), static_cast<T*>(y.data),
                                          y.stride, x.rows, x.cols);
  };
  vector ? run(combine_kernel<T, kWidth>) : run(combine_kernel<T, 1>);
  check_launch("combine_experts");
}

template <class Word>
void gather(MatrixView x, const int32_t* sorted_tokens, MatrixView y, StreamHandle stream) {
  const int64_t per_word = static_cast<int64_t>(sizeof(Word)) / size_of(x.dtype);
  const int64_t words = x.cols / per_word;
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(y.rows * words, kThreads), kBlocksPerSm);
  gather_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const Word*>(x.data), x.stride / per_word, sorted_tokens,
                                               static_cast<Word*>(y.data), y.stride / per_word, y.rows, words);
  check_launch("gather_rows");
}

}  // namespace

void sort_by_expert(const int32_t* ids, int64_t num_ids, int64_t experts, int64_t k, ExpertOrder order,
                    StreamHandle stream) {
  assert(num_ids % k == 0);
  sort_kernel<<<static_cast<unsigned>(experts), kThreads, 0, stream>>>(ids, static_cast<int>(num_ids),
                                                                       static_cast<int>(experts), static_cast<int>(k), order);
  check_launch("sort_by_expert");
}

void gather_rows(MatrixView x, const int32_t* sorted_tokens, MatrixView y, StreamHandle stream) {
  assert(x.dtype == y.dtype && x.cols == y.cols);
  if (y.rows == 0 || y.cols == 0) {
    return;
  }
  if (gpu::is_vectorizable(x) && gpu::is_vectorizable(y)) {
    gather<uint4>(x, sorted_tokens, y, stream);
  } else if (size_of(x.dtype) == 2) {
    gather<uint16_t>(x, sorted_tokens, y, stream);
  } else if (size_of(x.dtype) == 4) {
    gather<uint32_t>(x, sorted_tokens, y, stream);
  } else {
    assert(size_of(x.dtype) == 1);
    gather<uint8_t>(x, sorted_tokens, y, stream);
  }
}

void combine_experts(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
                     MatrixView y, StreamHandle stream) {
  assert(x.dtype == down.dtype && x.dtype == y.dtype && x.cols == down.cols && x.cols == y.cols);
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  x.dtype == Dtype::kBF16 ? combine<BF16>(x, down, weights, slot_rows, k, y, stream)
                          : combine<float>(x, down, weights, slot_rows, k, y, stream);
}

}  // namespace accord::kernels::cuda
