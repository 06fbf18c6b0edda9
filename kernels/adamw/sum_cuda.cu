// sum_in_order (adamw_cuda.hpp): what ranks made of one gradient, added in the order of the ranks. Every
// element's sum is one thread's, so it has no other order. Four elements a thread where memory is aligned.
#include <algorithm>

#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/cuda/launch.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int kWide = 4;

__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ OrderedParts parts, float* sum, int64_t first, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = first + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    float total = 0.0F;
    for (int p = 0; p < parts.num; ++p) {
      if (i < parts.count[p]) total += parts.data[p][i];
    }
    sum[i] = total;
  }
}

// Elements that all parts have, in vectors.
__global__ void __launch_bounds__(kThreads)
    sum_vectors_kernel(const __grid_constant__ OrderedParts parts, float* sum, int64_t vectors) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += step) {
    float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    for (int p = 0; p < parts.num; ++p) {
      const float4 x = reinterpret_cast<const float4*>(parts.data[p])[i];
      total.x += x.x;
      total.y += x.y;
      total.z += x.z;
      total.w += x.w;
    }
    reinterpret_cast<float4*>(sum)[i] = total;
  }
}

unsigned grid_of(int64_t threads) {
  return gpu::strided_grid(gpu::ceil_div(threads, kThreads), kBlocksPerSm);
}

}  // namespace

void sum_in_order(const OrderedParts& parts, float* sum, StreamHandle stream) {
  require(parts.num >= 0 && parts.num <= OrderedParts::kMost, "at most OrderedParts::kMost parts");
  int64_t longest = 0;
  int64_t shortest = parts.num == 0 ? 0 : parts.count[0];
  uintptr_t addresses = reinterpret_cast<uintptr_t>(sum);
  for (int p = 0; p < parts.num; ++p) {
    longest = std::max(longest, parts.count[p]);
    shortest = std::min(shortest, parts.count[p]);
    addresses |= reinterpret_cast<uintptr_t>(parts.data[p]);
  }
  int64_t done = 0;
  if (addresses % sizeof(float4) == 0 && shortest >= kWide) {
    const int64_t vectors = shortest / kWide;
    sum_vectors_kernel<<<grid_of(vectors), kThreads, 0, stream>>>(parts, sum, vectors);
    check_launch("sum_in_order");
    done = vectors * kWide;
  }
  if (done < longest) {
    sum_kernel<<<grid_of(longest - done), kThreads, 0, stream>>>(parts, sum, done, longest);
    check_launch("sum_in_order");
  }
}

}  // namespace accord::kernels::cuda
