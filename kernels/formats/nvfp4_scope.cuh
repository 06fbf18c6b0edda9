#pragma once
// Internal to kernels/formats: where NVFP4 kernels take a tensor's outer scale from.
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/formats/quantize.cuh"

namespace accord::formats::cuda {

// Where the outer scale comes from.
struct Scope {
  const float* maxima;  // its largest is A; or [rows], one A a row
  int count;            // 0: one a row
  float* amax;          // gets A
  int range;
  bool absolute;
  bool after_amax;  // this call's amax pass has just read x, which so is complete
};

// Every thread of the block gets the largest m.
template <int kThreads>
__device__ inline float block_max(float m) {
  __shared__ float shared[kThreads / gpu::kWarp];
  m = gpu::lane_max(m, gpu::kWarp);
  if (threadIdx.x % gpu::kWarp == 0) {
    shared[threadIdx.x / gpu::kWarp] = m;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kThreads / gpu::kWarp; ++i) {
    m = fmaxf(m, shared[i]);
  }
  __syncthreads();
  return m;
}

template <int kThreads>
__device__ inline float max_of(const float* values, int count) {
  if (count == 1) {
    return fmaxf(0.0F, values[0]);
  }
  float m = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    m = fmaxf(m, values[i]);
  }
  return block_max<kThreads>(m);
}

// 16x16 tiles (nvfp4_tiles_cuda.cu).
template <class T, bool kFourOverSix>
void quantize_tiles(MatrixView x, const Scope& scope, const Nvfp4Output& out, StreamHandle stream);

}  // namespace accord::formats::cuda
