// A warp makes a record: its rows through shared memory, so that both sides are read and written in whole
// lines.
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/fragment_words.hpp"
#include "kernels/gemm/fragments.hpp"
#include "kernels/gemm/fragments_cuda.hpp"
#include "kernels/gemm/mma.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRowBytes = 128;  // of a record, as they lie
constexpr int kRowStride = kRowBytes + 16;
constexpr int kBlocksPerSm = 4;

// Bytes of a row's scales in a record.
template <WeightFormat F>
constexpr int kRowScales = F == WeightFormat::kNVFP4 ? 16 : 4;

// `scales`: of the slab's first row and the record's first block. Written where fragments.hpp says.
template <WeightFormat F>
__device__ void move_scales(const uint8_t* scales, int64_t row_scales, uint8_t* to, int lane) {
  constexpr bool kNvfp4 = F == WeightFormat::kNVFP4;
#pragma unroll
  for (int i = 0; i < 16 * kRowScales<F> / 32; ++i) {
    const int at = i * 32 + lane;  // in the record
    const int g = at / 8 % 8;
    const int row = g + (kNvfp4 ? at / 2 % 2 : at / 4 % 2) * 8;
    const int block = kNvfp4 ? at / 64 * 4 + at / 4 % 2 * 2 + at % 2 : at % 4;
    to[at] = scales[row * row_scales + block];
  }
}

template <WeightFormat F>
__global__ void __launch_bounds__(32 * kWarps)
    fragments_kernel(const GemmWeight* weights, int32_t count, int64_t records, int64_t steps,
                     int64_t row_bytes, int64_t row_scales, int64_t record_bytes) {
  constexpr bool kNvfp4 = F == WeightFormat::kNVFP4;
  __shared__ __align__(16) unsigned char shared[kWarps][16 * kRowStride];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t rows = shared_address(shared[warp]);
  const uint32_t mine = rows + lane / 4 * kRowStride + lane % 4 * (kNvfp4 ? 2 : 4);
  const int64_t all = records * count;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + warp; i < all; i += int64_t{gridDim.x} * kWarps) {
    const GemmWeight w = weights[i / records];
    const int64_t record = i % records;
    const int64_t row = record / steps * 16;
    const int64_t step = record % steps;
    const unsigned char* from =
        static_cast<const unsigned char*>(w.data) + row * row_bytes + step * kRowBytes;
    auto* const to = static_cast<unsigned char*>(const_cast<void*>(w.fragments)) + record * record_bytes;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = lane / 8 + 4 * j;
      store_shared_16(rows + r * kRowStride + lane % 8 * 16,
                      __ldg(reinterpret_cast<const uint4*>(from + r * row_bytes) + lane % 8));
    }
    __syncwarp();
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      uint32_t word[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (kNvfp4) {
          const uint32_t at = mine + part * 32 + j * 8;
          word[j] = nvfp4_fragment_word(load_shared_2(at), load_shared_2(at + 8 * kRowStride));
        } else {
          const uint32_t at = mine + part * 32 + j / 2 * 16 + j % 2 * (8 * kRowStride);
          word[j] = mxfp8_fragment_word(load_shared_4(at));
        }
      }
      reinterpret_cast<uint4*>(to)[part * 32 + lane] = {word[0], word[1], word[2], word[3]};
    }
    move_scales<F>(w.scales + row * row_scales + step * kRowScales<F>, row_scales, to + 2048, lane);
    __syncwarp();  // before the next record's rows come
  }
}

}  // namespace

void to_fragments(WeightFormat format, int64_t n, int64_t k, const GemmWeight* weights, int32_t count,
                  StreamHandle stream) {
  require(takes_fragments(format, n, k), "takes_fragments(format, n, k)");
  if (count == 0) return;
  const int64_t steps = k / fragment_values(format);
  const int64_t records = n / kFragmentRows * steps;
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(records * count, kWarps), kBlocksPerSm);
  const int64_t record_bytes = fragment_record_bytes(format);
  if (format == WeightFormat::kNVFP4) {
    fragments_kernel<WeightFormat::kNVFP4>
        <<<grid, 32 * kWarps, 0, stream>>>(weights, count, records, steps, k / 2, k / 16, record_bytes);
  } else {
    fragments_kernel<WeightFormat::kMXFP8>
        <<<grid, 32 * kWarps, 0, stream>>>(weights, count, records, steps, k, k / 32, record_bytes);
  }
  check_launch("to_fragments");
}

}  // namespace accord::kernels::cuda
