#include "kernels/copy/read_cuda.hpp"
#include "kernels/cuda/launch.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 8;
constexpr int64_t kChunk = int64_t{kThreads} * kLoads * 16;

__global__ void __launch_bounds__(kThreads)
    read_kernel(const GemmWeight* experts, int32_t count, int64_t data_bytes, int64_t scale_bytes,
                uint32_t* sink) {
  const int64_t data_chunks = gpu::ceil_div(data_bytes, kChunk);
  const int64_t chunks = data_chunks + gpu::ceil_div(scale_bytes, kChunk);
  uint32_t sum = 0;
  for (int64_t i = blockIdx.x; i < count * chunks; i += gridDim.x) {
    const GemmWeight weight = experts[i / chunks];
    const int64_t chunk = i % chunks;
    const bool is_data = chunk < data_chunks;
    const auto* from = static_cast<const unsigned char*>(is_data ? weight.data : weight.scales);
    const int64_t bytes = is_data ? data_bytes : scale_bytes;
    const int64_t at = (is_data ? chunk : chunk - data_chunks) * kChunk + threadIdx.x * 16;
    uint4 v[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int64_t byte = at + int64_t{j} * kThreads * 16;
      v[j] = byte < bytes ? __ldcs(reinterpret_cast<const uint4*>(from + byte)) : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;  // the loads must not be left out
}

}  // namespace

void plain_read(const GemmWeight* experts, int32_t count, int64_t data_bytes, int64_t scale_bytes,
                uint32_t* sink, StreamHandle stream) {
  const int64_t chunks = count * (gpu::ceil_div(data_bytes, kChunk) + gpu::ceil_div(scale_bytes, kChunk));
  read_kernel<<<gpu::strided_grid(chunks, 4), kThreads, 0, stream>>>(experts, count, data_bytes, scale_bytes,
                                                                     sink);
  check_launch("plain_read");
}

}  // namespace accord::kernels::cuda
