// sort     ids [T*K] -> rows sorted by expert, then by position: a stable counting sort. Few ids: one block
// an
//          expert reads all of them. Many: each block counts the experts of a chunk, one block turns counts
//          into first rows, and each block places its chunk; a warp's equal ids find each other by votes.
// combine  y[t] = T(x[t] + T(sum over slots s ascending of weights[t][s] * down[slot_rows[t][s]])), by fused
//          multiply-adds from slot 0 on.
#include "kernels/cuda/overlap.cuh"
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

constexpr int64_t kFewIds = 8192;
constexpr int kChunkRounds = 4;                        // of a warp
constexpr int kChunk = kWarps * kChunkRounds * kWarp;  // ids of a block
constexpr int kMaxExperts = 1024;

// counters[warp][expert] of this block's chunk; all zero before.
__device__ inline void count_chunk(const int32_t* ids, int num_ids, int experts, int* counters) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int begin = static_cast<int>(blockIdx.x) * kChunk + warp * kChunkRounds * kWarp;
  for (int round = 0; round < kChunkRounds; ++round) {
    const int i = begin + round * kWarp + lane;
    const int id = i < num_ids ? ids[i] : -1;
    const uint32_t same = __match_any_sync(kFullMask, id);
    if (id >= 0 && lane == __ffs(static_cast<int>(same)) - 1) {
      counters[warp * experts + id] += __popc(same);
    }
    __syncwarp();
  }
}

// counts[chunk][expert]
__global__ void __launch_bounds__(kThreads)
    count_kernel(const int32_t* ids, int num_ids, int experts, int32_t* counts) {
  extern __shared__ int counters[];
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * experts; i += kThreads) {
    counters[i] = 0;
  }
  __syncthreads();
  count_chunk(ids, num_ids, experts, counters);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      sum += counters[w * experts + e];
    }
    counts[static_cast<int64_t>(blockIdx.x) * experts + e] = sum;
  }
}

// counts[chunk][expert] -> the first row of the chunk's ids of that expert. One block.
__global__ void __launch_bounds__(kMaxExperts)
    offsets_kernel(int32_t* counts, int chunks, int experts, int num_ids, int32_t* expert_offsets) {
  __shared__ int totals[kMaxExperts];
  const int e = static_cast<int>(threadIdx.x);
  int total = 0;
  if (e < experts) {
    for (int c = 0; c < chunks; ++c) {
      const int64_t at = static_cast<int64_t>(c) * experts + e;
      const int count = counts[at];
      counts[at] = total;
      total += count;
    }
    totals[e] = total;
  }
  __syncthreads();
  if (e < experts) {
    int first = 0;
    for (int other = 0; other < e; ++other) {
      first += totals[other];
    }
    expert_offsets[e] = first;
    if (e == experts - 1) {
      expert_offsets[experts] = num_ids;
    }
  }
}

__global__ void __launch_bounds__(kThreads) place_kernel(const int32_t* ids, int num_ids, int experts, int k,
                                                         const int32_t* counts, ExpertOrder order) {
  extern __shared__ int counters[];
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * experts; i += kThreads) {
    counters[i] = 0;
  }
  __syncthreads();
  count_chunk(ids, num_ids, experts, counters);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    int next = order.expert_offsets[e] + counts[static_cast<int64_t>(blockIdx.x) * experts + e];
    for (int w = 0; w < kWarps; ++w) {
      const int count = counters[w * experts + e];
      counters[w * experts + e] = next;
      next += count;
    }
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int begin = static_cast<int>(blockIdx.x) * kChunk + warp * kChunkRounds * kWarp;
  for (int round = 0; round < kChunkRounds; ++round) {
    const int i = begin + round * kWarp + lane;
    const int id = i < num_ids ? ids[i] : -1;
    const uint32_t same = __match_any_sync(kFullMask, id);
    if (id >= 0) {
      const int row = counters[warp * experts + id] + __popc(same & ((1u << lane) - 1u));
      order.sorted_tokens[row] = i / k;
      order.sorted_slots[row] = i % k;
      order.slot_rows[i] = row;
    }
    __syncwarp();
    if (id >= 0 && lane == __ffs(static_cast<int>(same)) - 1) {
      counters[warp * experts + id] += __popc(same);
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kThreads)
    sort_kernel(const int32_t* ids, int num_ids, int experts, int k, ExpertOrder order) {
  __shared__ int shared[kWarps];
  gpu::wait_for_previous();
  gpu::allow_next();
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
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Word* x, int64_t x_stride, const int32_t* sorted_tokens, Word* y, int64_t y_stride,
                  int64_t rows, int64_t words) {
  gpu::wait_for_previous();
  gpu::allow_next();
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
  gpu::wait_for_previous();
  gpu::allow_next();
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
void combine(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
             MatrixView y, StreamHandle stream) {
  constexpr int kWidth = gpu::kVector<T>;
  const bool vector = gpu::is_vectorizable(x) && gpu::is_vectorizable(down) && gpu::is_vectorizable(y);
  const int64_t work = gpu::ceil_div(x.rows * x.cols, kThreads * (vector ? kWidth : 1));
  const unsigned grid = gpu::strided_grid(work, kBlocksPerSm);
  const auto run = [&](auto kernel) {
    gpu::launch_overlapped(kernel, grid, kThreads, 0, stream, static_cast<const T*>(x.data), x.stride,
                           static_cast<const T*>(down.data), down.stride, weights, slot_rows,
                           static_cast<int>(k), static_cast<T*>(y.data), y.stride, x.rows, x.cols);
  };
  vector ? run(combine_kernel<T, kWidth>) : run(combine_kernel<T, 1>);
  check_launch("combine_experts");
}

template <class Word>
void gather(MatrixView x, const int32_t* sorted_tokens, MatrixView y, StreamHandle stream) {
  const int64_t per_word = static_cast<int64_t>(sizeof(Word)) / size_of(x.dtype);
  const int64_t words = x.cols / per_word;
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(y.rows * words, kThreads), kBlocksPerSm);
  gpu::launch_overlapped(gather_kernel<Word>, grid, kThreads, 0, stream, static_cast<const Word*>(x.data),
                         x.stride / per_word, sorted_tokens, static_cast<Word*>(y.data), y.stride / per_word,
                         y.rows, words);
  check_launch("gather_rows");
}

}  // namespace

int64_t sort_scratch(int64_t num_ids, int64_t experts) {
  return num_ids <= kFewIds ? 0 : gpu::ceil_div(num_ids, kChunk) * experts;
}

void sort_by_expert(const int32_t* ids, int64_t num_ids, int64_t experts, int64_t k, ExpertOrder order,
                    int32_t* scratch, StreamHandle stream) {
  require(num_ids % k == 0 && experts <= kMaxExperts, "num_ids % k == 0 && experts <= kMaxExperts");
  const auto n = static_cast<int>(num_ids);
  const auto e = static_cast<int>(experts);
  if (num_ids <= kFewIds) {
    gpu::launch_overlapped(sort_kernel, static_cast<unsigned>(experts), kThreads, 0, stream, ids, n, e,
                           static_cast<int>(k), order);
  } else {
    const auto chunks = static_cast<unsigned>(gpu::ceil_div(num_ids, kChunk));
    const auto bytes = static_cast<size_t>(kWarps * experts) * sizeof(int);
    count_kernel<<<chunks, kThreads, bytes, stream>>>(ids, n, e, scratch);
    offsets_kernel<<<1, kMaxExperts, 0, stream>>>(scratch, static_cast<int>(chunks), e, n,
                                                  order.expert_offsets);
    place_kernel<<<chunks, kThreads, bytes, stream>>>(ids, n, e, static_cast<int>(k), scratch, order);
  }
  check_launch("sort_by_expert");
}

void gather_rows(MatrixView x, const int32_t* sorted_tokens, MatrixView y, StreamHandle stream) {
  require(x.dtype == y.dtype && x.cols == y.cols, "x.dtype == y.dtype && x.cols == y.cols");
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
    require(size_of(x.dtype) == 1, "size_of(x.dtype) == 1");
    gather<uint8_t>(x, sorted_tokens, y, stream);
  }
}

void combine_experts(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
                     MatrixView y, StreamHandle stream) {
  require(x.dtype == down.dtype && x.dtype == y.dtype && x.cols == down.cols && x.cols == y.cols,
          "x.dtype == down.dtype && x.dtype == y.dtype && x.cols == down.cols && x.cols == y.cols");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  x.dtype == Dtype::kBF16 ? combine<BF16>(x, down, weights, slot_rows, k, y, stream)
                          : combine<float>(x, down, weights, slot_rows, k, y, stream);
}

}  // namespace accord::kernels::cuda
