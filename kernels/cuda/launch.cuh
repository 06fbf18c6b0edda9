#pragma once
// What every .cu file needs: CUDA's runtime header, streams as the public headers name them, launch
// arithmetic and the check after a launch (device/launch.hpp).
#include <cuda_runtime.h>

#include <cstdint>

#include "device/launch.hpp"
#include "device/stream_handle.hpp"

namespace accord::gpu {

constexpr int kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks of a grid that strides over `blocks` of work: all of them, or what fits on the device `per_sm`
// times.
inline unsigned strided_grid(int64_t blocks, int per_sm) {
  const int64_t resident = static_cast<int64_t>(num_multiprocessors()) * per_sm;
  return static_cast<unsigned>(blocks < resident ? blocks : resident);
}

}  // namespace accord::gpu
