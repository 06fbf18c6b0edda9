#pragma once
// Softmax statistics of a row by one block, with the bits of kernels/logprob: max, and the sum of
// exponentials in sixteen-lane order. The block computes a tile's exponentials in parallel; sixteen threads
// of its last warp add them up in order, while the others already work on the next tile.
#include "kernels/cuda/lanes.cuh"
#include "kernels/math/exp_log.hpp"

namespace accord::gpu {

constexpr int kSoftmaxThreads = 512;
constexpr int kSoftmaxTile = 2048;

template <bool kEntropy>
struct SoftmaxStorage {
  float weights[2][kSoftmaxTile];
  float products[kEntropy ? 2 : 1][kEntropy ? kSoftmaxTile : 1];
  float warps[kSoftmaxThreads / kWarp];
  float sums[2];
};

struct SoftmaxSums {
  float max;
  float sum;
  float weighted;  // of exp(d) * d, d = z - max, with kEntropy
};

// Sums in sixteen-lane order over a shared tile, kept across tiles: thread `lane` of sixteen.
__device__ inline float add_tile(const float* tile, int count, int lane, float sum) {
  constexpr int kUnroll = 16;
  int i = lane;
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

// Calls body(id, logit) for the ids of this thread, in ascending order, with several loads in flight.
template <class Body>
__device__ inline void for_my_logits(const float* logits, int64_t vocab, Body body) {
  constexpr int kUnroll = 8;
  int64_t i = threadIdx.x;
  for (; i + (kUnroll - 1) * kSoftmaxThreads < vocab; i += kUnroll * kSoftmaxThreads) {
    float v[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      v[j] = logits[i + j * kSoftmaxThreads];
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      body(i + j * kSoftmaxThreads, v[j]);
    }
  }
  for (; i < vocab; i += kSoftmaxThreads) {
    body(i, logits[i]);
  }
}

// A division by 1 changes nothing.
__device__ inline float tempered(float logit, float temperature) {
  return temperature == 1.0F ? logit : logit / temperature;
}

// max z of the row, NaN ignored, from -inf; for every thread.
__device__ inline float max_of_row(const float* logits, int64_t vocab, float temperature, float* shared) {
  // From the end of the row: the pass that follows finds what was read last, the start, in the cache.
  constexpr int kUnroll = 8;
  float m = -__builtin_huge_valf();
  int64_t i = vocab - 1 - threadIdx.x;
  for (; i >= (kUnroll - 1) * kSoftmaxThreads; i -= kUnroll * kSoftmaxThreads) {
    float v[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      v[j] = logits[i - j * kSoftmaxThreads];
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      m = fmaxf(m, tempered(v[j], temperature));
    }
  }
  for (; i >= 0; i -= kSoftmaxThreads) {
    m = fmaxf(m, tempered(logits[i], temperature));
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    m = fmaxf(m, __shfl_xor_sync(kFullMask, m, offset));
  }
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = m;
  }
  __syncthreads();
  for (int i = 0; i < kSoftmaxThreads / kWarp; ++i) {
    m = fmaxf(m, shared[i]);
  }
  __syncthreads();
  return m;
}

// Called by all threads of a block of kSoftmaxThreads; the result is every thread's. `each(p)` sees every
// weight exp(z - max) of its thread once; all threads call `after_tile(tile)` after those of a tile.
template <bool kEntropy, class Each, class AfterTile>
__device__ inline SoftmaxSums softmax_sums(const float* logits, int64_t vocab, float temperature,
                                           SoftmaxStorage<kEntropy>& shared, Each each,
                                           AfterTile after_tile) {
  const float max = max_of_row(logits, vocab, temperature, shared.warps);
  constexpr int kAdder = kSoftmaxThreads / kWarp - 1;
  constexpr int kPerThread = kSoftmaxTile / kSoftmaxThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0.0F;  // of the adder's lanes 0 to 15; 16 to 31 add the products
  float next[kPerThread];
  const auto load = [&](int64_t begin) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t i = begin + j * kSoftmaxThreads + threadIdx.x;
      next[j] = i < vocab ? logits[i] : 0.0F;
    }
  };
  load(0);
  int buffer = 0;
  int tile = 0;
  for (int64_t begin = 0; begin < vocab; begin += kSoftmaxTile, buffer ^= 1, ++tile) {
    const int count = static_cast<int>(vocab - begin < kSoftmaxTile ? vocab - begin : kSoftmaxTile);
    float current[kPerThread];
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      current[j] = next[j];
    }
    load(begin + kSoftmaxTile);
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int i = j * kSoftmaxThreads + static_cast<int>(threadIdx.x);
      if (i < count) {
        const float d = tempered(current[j], temperature) - max;
        const float p = kernels::exp_scalar(d);
        shared.weights[buffer][i] = p;
        if constexpr (kEntropy) {
          shared.products[buffer][i] = p == 0.0F ? 0.0F : p * d;  // also where d is -inf; a NaN stays
        }
        each(p);
      }
    }
    after_tile(tile);
    // Past this barrier nobody reads the other buffer any more: its adder comes here after it.
    __syncthreads();
    if (warp == kAdder) {
      if (lane < kSumLanes) {
        sum = add_tile(shared.weights[buffer], count, lane, sum);
      } else if constexpr (kEntropy) {
        sum = add_tile(shared.products[buffer], count, lane - kSumLanes, sum);
      }
    }
  }
  if (warp == kAdder) {
    sum = fold_lanes_shuffled(sum);
    if (lane % kSumLanes == 0) {
      shared.sums[lane / kSumLanes] = sum;
    }
  }
  __syncthreads();
  return {max, shared.sums[0], shared.sums[1]};
}

}  // namespace accord::gpu
