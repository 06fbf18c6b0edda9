// What an optimizer step asks of the fp32 values x[count] of its gradients and masters (adamw_cuda.hpp):
//   sum x^2 in double   a block sums kSquaresBlock elements: thread t its vectors of four in ascending order,
//                       then a tree; one more block adds the blocks' sums likewise. The order depends on
//                       nothing but `count`.
//   least index, largest magnitude, counts: integers, whose order means nothing.
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/adamw/adamw_element.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace accord::kernels::cuda {
namespace {

using gpu::kFullMask;
using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int64_t kSquaresBlock = 1 << 14;  // elements
constexpr uint32_t kInfBits = 0x7f800000u;

__device__ inline uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The sum of a block's threads, for thread 0.
__device__ inline double sum_of_block(double sum) {
  __shared__ double shared[kThreads / kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum = sum + __shfl_xor_sync(kFullMask, sum, offset);
  }
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / kWarp; ++i) {
      sum = sum + shared[i];
    }
  }
  return sum;
}

__device__ inline double add_square(double sum, float x) {
  const double value = x;
  return sum + value * value;  // the product of two floats is exact
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) squares_kernel(const float* x, int64_t count, double* sums) {
  constexpr int kStep = kThreads * 4;
  const int64_t begin = blockIdx.x * kSquaresBlock;
  const int64_t end = count - begin < kSquaresBlock ? count : begin + kSquaresBlock;
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * 4; i < end; i += kStep) {
    if (i + 4 <= end) {
      float v[4];
      gpu::unpack<float>(gpu::load_vector<float, kAligned>(x + i), v);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum = add_square(sum, v[j]);
      }
    } else {
      for (int64_t j = i; j < end; ++j) {
        sum = add_square(sum, x[j]);
      }
    }
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) add_kernel(const double* sums, int64_t count, double* result) {
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sum = sum + sums[i];
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) {
    *result = sum;
  }
}

// Calls body(i, x[i]) for every element of this thread.
template <bool kAligned, class Body>
__device__ inline void for_my_elements(const float* x, int64_t count, Body body) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
#pragma unroll 4
  for (int64_t i = thread * 4; i + 4 <= count; i += step * 4) {
    float v[4];
    gpu::unpack<float>(gpu::load_vector<float, kAligned>(x + i), v);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      body(i + j, v[j]);
    }
  }
  const int64_t rest = count / 4 * 4 + thread;
  if (rest < count) {
    body(rest, x[rest]);
  }
}

template <class T>
__global__ void set_kernel(T* to, T value) {
  *to = value;
}

using Index = unsigned long long;  // NOLINT: what CUDA's 64-bit atomics take

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) first_kernel(const float* x, int64_t count, Index* first) {
  int64_t found = count;
  for_my_elements<kAligned>(x, count, [&](int64_t i, float value) {
    if (magnitude_bits(value) >= kInfBits && i < found) {
      found = i;
    }
  });
  if (found < count) {
    atomicMin(first, static_cast<Index>(found));
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) max_kernel(const float* x, int64_t count, uint32_t* bits) {
  uint32_t largest = 0;
  for_my_elements<kAligned>(x, count,
                            [&](int64_t, float value) { largest = max(largest, magnitude_bits(value)); });
  largest = __reduce_max_sync(kFullMask, largest);
  if (threadIdx.x % kWarp == 0) {
    atomicMax(bits, largest);
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) flushed_kernel(const float* x, int64_t count, Index* result) {
  int64_t flushed = 0;
  for_my_elements<kAligned>(x, count, [&](int64_t, float value) {
    flushed += kernels::flushed_by_bf16(magnitude_bits(value)) ? 1 : 0;
  });
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    flushed += __shfl_xor_sync(kFullMask, flushed, offset);
  }
  if (threadIdx.x % kWarp == 0 && flushed != 0) {
    atomicAdd(result, static_cast<Index>(flushed));
  }
}

bool is_aligned(const float* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; }

// *result = initial, then the kernel over all elements.
template <class T, class Kernel>
void reduce(const char* name, Kernel kernel, const float* x, int64_t count, T* result, T initial,
            StreamHandle stream) {
  set_kernel<T><<<1, 1, 0, stream>>>(result, initial);
  check_launch(name);
  if (count == 0) {
    return;
  }
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(count, 4 * kThreads), kBlocksPerSm);
  kernel<<<grid, kThreads, 0, stream>>>(x, count, result);
  check_launch(name);
}

}  // namespace

int64_t squares_scratch(int64_t count) { return gpu::ceil_div(count, kSquaresBlock); }

void sum_of_squares(const float* x, int64_t count, double* result, double* scratch, StreamHandle stream) {
  const int64_t blocks = squares_scratch(count);
  if (blocks != 0) {
    const auto kernel = is_aligned(x) ? squares_kernel<true> : squares_kernel<false>;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, count, scratch);
    check_launch("sum_of_squares");
  }
  add_kernel<<<1, kThreads, 0, stream>>>(scratch, blocks, result);
  check_launch("sum_of_squares");
}

void first_non_finite(const float* x, int64_t count, int64_t* first, StreamHandle stream) {
  reduce("first_non_finite", is_aligned(x) ? first_kernel<true> : first_kernel<false>, x, count,
         reinterpret_cast<Index*>(first), static_cast<Index>(count), stream);
}

void max_abs_bits(const float* x, int64_t count, uint32_t* bits, StreamHandle stream) {
  reduce("max_abs_bits", is_aligned(x) ? max_kernel<true> : max_kernel<false>, x, count, bits, uint32_t{0},
         stream);
}

void flushed_by_bf16(const float* x, int64_t count, int64_t* count_out, StreamHandle stream) {
  reduce("flushed_by_bf16", is_aligned(x) ? flushed_kernel<true> : flushed_kernel<false>, x, count,
         reinterpret_cast<Index*>(count_out), Index{0}, stream);
}

}  // namespace accord::kernels::cuda
