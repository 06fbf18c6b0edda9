#pragma once
// The contract's order of sums (math/simd.hpp) on the device: lane j of sixteen adds the elements j, j+16,
// ... in ascending order; then (j, j+8), then neighbours, neighbours again, and the two halves.
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/cuda/launch.cuh"

namespace accord::gpu {

constexpr int kSumLanes = 16;

// One sum from its sixteen lanes.
__device__ inline float fold_lanes(const float* lanes) {
  float v[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    v[j] = lanes[j] + lanes[j + 8];
  }
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// The same where lane j of sixteen neighbouring threads has v; all sixteen get the sum.
__device__ inline float fold_lanes_shuffled(float v) {
  v = v + __shfl_xor_sync(kFullMask, v, 8);
  v = v + __shfl_xor_sync(kFullMask, v, 1);
  v = v + __shfl_xor_sync(kFullMask, v, 2);
  return v + __shfl_xor_sync(kFullMask, v, 4);
}

// Lane `lane` of sum x[i]^2, by fused multiply-adds. The unrolled loads are independent of the chain.
template <class T>
__device__ inline float lane_of_squares(const T* x, int64_t n, int lane) {
  constexpr int kUnroll = 8;
  float sum = 0.0F;
  int64_t i = lane;
  for (; i + (kUnroll - 1) * kSumLanes < n; i += kUnroll * kSumLanes) {
    float v[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      v[j] = to_float(x[i + j * kSumLanes]);
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      sum = __fmaf_rn(v[j], v[j], sum);
    }
  }
  for (; i < n; i += kSumLanes) {
    const float v = to_float(x[i]);
    sum = __fmaf_rn(v, v, sum);
  }
  return sum;
}

// A tree's sum over a warp, for every lane: where no CPU order is promised.
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    v = v + __shfl_xor_sync(kFullMask, v, offset);
  }
  return v;
}

}  // namespace accord::gpu
