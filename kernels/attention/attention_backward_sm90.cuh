#pragma once
// What the two kernels of attention's backward on Hopper share: tiles of 128 own rows, 64 for each of two
// warpgroups, and a ring of 64 rows of both operands that a third fills. The sums are those of
// attention_backward_tiles.cuh in the same order: same bits.
#include "kernels/attention/attention_block.cuh"
#include "kernels/attention/attention_shapes.hpp"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/cuda/vector.cuh"

namespace accord::kernels::cuda::attention {

constexpr int kGroupThreads = 128;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kGroupRows = 64;
constexpr int kOwnRows = kConsumers * kGroupRows;
constexpr int kBackwardThreads = (1 + kConsumers) * kGroupThreads;

// A stage: 64 rows of two operands in blocks of 64 columns (wgmma.cuh), then 64 values of lse and of delta.
template <int D>
struct BackwardLayout {
  static constexpr int kStages = D == 128 ? 4 : 6;
  static constexpr int kOperand = kGroupRows * D * 2;
  static constexpr int kOwnBlock = kOwnRows * 128;  // 64 columns of the own rows of an operand
  static constexpr int kOwnOperand = kOwnRows * D * 2;
  static constexpr int kOwn = kStages * 2 * kOperand;
  static constexpr int kStats = kOwn + 2 * kOwnOperand;
  static constexpr int kStageStats = 2 * kGroupRows * 4;
  static constexpr int kBarriers = kStats + kStages * kStageStats;
  static constexpr int kBytes = kBarriers + (2 * kStages + 2) * 8 + 1024;  // starts at a multiple of 1024

  __device__ static uint32_t stage(uint32_t base, uint32_t at) { return base + at % kStages * 2 * kOperand; }
  __device__ static uint32_t stats(uint32_t at) { return kStats + at % kStages * kStageStats; }
  __device__ static uint32_t full(uint32_t base, uint32_t at) { return base + kBarriers + at % kStages * 8; }
  __device__ static uint32_t empty(uint32_t base, uint32_t at) { return full(base, at) + kStages * 8; }
  __device__ static uint32_t own_full(uint32_t base) { return base + kBarriers + 2 * kStages * 8; }
  __device__ static uint32_t own_empty(uint32_t base) { return own_full(base) + 8; }
  __device__ static uint32_t phase(uint32_t at) { return at / kStages & 1; }

  __device__ static void init(uint32_t base, int own_arrivals) {
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < kStages; ++i) {
        barrier_init(full(base, i), kGroupThreads);
        barrier_init(empty(base, i), kConsumers * kWarps);
      }
      barrier_init(own_full(base), own_arrivals);
      barrier_init(own_empty(base), kConsumers * kWarps);
    }
    __syncthreads();
  }
};

// Copies ROWS rows of D columns, from row `first` of `rows` on, to blocks of 64 columns; zeros past the end.
template <int D, int ROWS>
__device__ inline void copy_rows(const BF16* data, int64_t stride, int first, int rows, uint32_t to) {
  constexpr int kChunks = D / 8;  // of 16 bytes in a row
  constexpr int kAtOnce = kGroupThreads / kChunks;
  static_assert(kAtOnce % 8 == 0);
  const int tid = threadIdx.x % kGroupThreads;
  const int chunk = tid % kChunks;
  const int row0 = tid / kChunks;
  const BF16* const from = data + (first + row0) * stride + chunk * 8;
  to += chunk / 8 * (ROWS * 128) + row0 * 128 + ((chunk % 8) ^ (row0 % 8)) * 16;
#pragma unroll 8
  for (int i = 0; i < ROWS / kAtOnce; ++i) {
    const bool valid = first + row0 + i * kAtOnce < rows;
    copy_async<16>(to + i * kAtOnce * 128, valid ? from + i * kAtOnce * stride : data, valid);
  }
}

// lse and delta of 64 rows of one head.
template <int D>
__device__ inline void copy_stats(const AttentionBackwardArgs& p, int64_t sequence, int head, int first,
                                  int rows, uint32_t to) {
  const int tid = threadIdx.x % kGroupThreads;
  const int row = first + tid % kGroupRows;
  const float* const from = tid < kGroupRows ? p.lse : p.delta;
  const bool valid = row < rows;
  copy_async<4>(to + tid * 4, valid ? from + (sequence + row) * p.dims.num_heads + head : from, valid);
}

// Steps of 16 of an operand that starts at `descriptor`, whose low bits are an address in units of 16 bytes:
// along the contracted dimension (BLOCK: bytes of 64 columns), or across it.
template <int BLOCK>
__device__ inline uint32_t along(uint32_t descriptor, int step) {
  return descriptor + (step / 4 * BLOCK + step % 4 * 32) / 16;
}
__device__ inline uint32_t across(uint32_t descriptor, int step) { return descriptor + step * 2048 / 16; }

// Of the first operand of a stage; the second lies kOperand / 16 on.
template <int D>
__device__ inline uint32_t stage_descriptor(uint32_t base, uint32_t at) {
  return uniform(descriptor_low(BackwardLayout<D>::stage(base, at)));
}

template <int D>
__device__ inline void release(uint32_t base, uint32_t at) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(BackwardLayout<D>::empty(base, at));
}

template <int D>
__device__ inline void wait_stage(uint32_t base, uint32_t at) {
  barrier_wait(BackwardLayout<D>::full(base, at), BackwardLayout<D>::phase(at));
}

// The producer's: stage `at` is filled, as far as this thread copied it.
template <int D>
__device__ inline void announce(uint32_t base, uint32_t at) {
  fence_async_proxy();  // the copies, for the tensor cores
  barrier_arrive(BackwardLayout<D>::full(base, at));
}

// exp_scalar of x up to 44, in fewer instructions (as exp_nonpositive); more counts as 44. A key that a query
// sees has x = s - lse, which is positive by lse's rounding alone.
__device__ inline float exp_below(float x) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(44.0F));
  return exp_nonpositive(x);
}

template <int D>
__device__ inline void store_rows_of_group(const float (&c)[D / 2], float* out, int64_t stride, int first,
                                           int rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + threadIdx.x % kGroupThreads / 32 * 16 + half * 8 + lane / 4;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      *reinterpret_cast<float2*>(out + row * stride + j * 8 + lane % 4 * 2) = {c[4 * j + half * 2],
                                                                               c[4 * j + half * 2 + 1]};
    }
  }
}

}  // namespace accord::kernels::cuda::attention
