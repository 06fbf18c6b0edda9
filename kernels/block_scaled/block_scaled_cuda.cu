// Scales into tiles, a word of four at a time in the order of the tiles; rows of experts into tiles of their
// own; outer scales onto sums, eight of a row at a time.
#include "kernels/block_scaled/block_scaled_cuda.hpp"
#include "kernels/block_scaled/outer_scale.hpp"
#include "kernels/block_scaled/scale_tiles.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int64_t kTileRows = 128;

// Scales [column, column + 4) of a row; zero past its end.
__device__ inline uint32_t four_scales(const uint8_t* row, int64_t column, int64_t inner) {
  uint32_t value = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < inner) value |= static_cast<uint32_t>(row[column + i]) << (8 * i);
  }
  return value;
}

__global__ void __launch_bounds__(kThreads)
    tile_kernel(const uint8_t* scales, int64_t rows, int64_t inner, int64_t words, uint32_t* tiles) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < words; at += step) {
    const auto [row, column] = block_scaled::tile_word(at, inner);
    tiles[at] = row < rows ? four_scales(scales + row * inner, column, inner) : 0;
  }
}

// One block per tile of the list and slice of its work.
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const QuantizedMatrix x, const int32_t* gather, const GroupTile* list,
                const int32_t* num_tiles, uint8_t* codes, uint8_t* tiles) {
  const int64_t t = blockIdx.x;
  if (t >= *num_tiles) return;
  const GroupTile tile = list[t];
  const auto source = [&](int64_t row) {
    const int64_t sorted = tile.row_begin + row;
    return gather == nullptr ? sorted : static_cast<int64_t>(gather[sorted]);
  };
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kThreads;
  const int64_t chunks = x.row_bytes / 16;
  for (int64_t i = first; i < kTileRows * chunks; i += step) {
    const int64_t row = i / chunks;
    const int64_t byte = i % chunks * 16;
    const uint4 zero{0, 0, 0, 0};
    const uint4 value = row < tile.num_rows ? gpu::load16(x.codes + source(row) * x.row_bytes + byte) : zero;
    gpu::store16(codes + (t * kTileRows + row) * x.row_bytes + byte, value);
  }
  const int64_t words = block_scaled::tile_words(kTileRows, x.inner);
  auto* const to = reinterpret_cast<uint32_t*>(tiles) + t * words;
  for (int64_t at = first; at < words; at += step) {
    const auto [row, column] = block_scaled::tile_word(at, x.inner);
    to[at] = row < tile.num_rows ? four_scales(x.scales + source(row) * x.inner, column, x.inner) : 0;
  }
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    outer_kernel(const float* sums, const float* x_outer, const int32_t* x_rows, const float* w_outer,
                 int64_t rows, int64_t cols, T* y, int64_t y_stride) {
  const int64_t per_row = cols / 8;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * per_row; i += step) {
    const int64_t row = i / per_row;
    const int64_t column = i % per_row * 8;
    const float x_scale = x_outer[x_rows == nullptr ? row : x_rows[row]];
    float v[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float four[4];
      gpu::unpack<float>(gpu::load16(sums + row * cols + column + 4 * half), four);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        v[4 * half + j] = block_scaled::apply_outer_scales(four[j], x_scale, *w_outer);
      }
    }
    T* to = y + row * y_stride + column;
    if constexpr (kAligned && sizeof(T) == 2) {
      gpu::store16(to, gpu::pack<T>(v));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = from_float<T>(v[j]);
    }
  }
}

template <class T, bool kAligned>
void launch_outer(const float* sums, const float* x_outer, const int32_t* x_rows, const float* w_outer,
                  MatrixView y, StreamHandle stream) {
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(y.rows * (y.cols / 8), kThreads), kBlocksPerSm);
  outer_kernel<T, kAligned><<<grid, kThreads, 0, stream>>>(sums, x_outer, x_rows, w_outer, y.rows, y.cols,
                                                           static_cast<T*>(y.data), y.stride);
  check_launch("apply_outer_scales");
}

}  // namespace

void tile_scales(const uint8_t* scales, int64_t rows, int64_t inner, uint8_t* tiles, StreamHandle stream) {
  require(reinterpret_cast<uintptr_t>(tiles) % 16 == 0, "tiles that are aligned to 16 bytes");
  if (rows == 0 || inner == 0) return;
  const int64_t words = block_scaled::tile_words(rows, inner);
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(words, kThreads), kBlocksPerSm);
  tile_kernel<<<grid, kThreads, 0, stream>>>(scales, rows, inner, words, reinterpret_cast<uint32_t*>(tiles));
  check_launch("tile_scales");
}

void pack_expert_rows(const QuantizedMatrix& x, const int32_t* gather, const GroupTile* list,
                      const int32_t* num_tiles, int32_t max_tiles, uint8_t* codes, uint8_t* tiles,
                      StreamHandle stream) {
  require(x.row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(x.codes) % 16 == 0 &&
              reinterpret_cast<uintptr_t>(codes) % 16 == 0 && reinterpret_cast<uintptr_t>(tiles) % 16 == 0,
          "rows that are aligned to 16 bytes");
  if (max_tiles == 0) return;
  constexpr int64_t kChunksPerThread = 4;
  const int64_t slices = gpu::ceil_div(kTileRows * (x.row_bytes / 16), kThreads * kChunksPerThread);
  const dim3 grid(static_cast<unsigned>(max_tiles), static_cast<unsigned>(slices));
  pack_kernel<<<grid, kThreads, 0, stream>>>(x, gather, list, num_tiles, codes, tiles);
  check_launch("pack_expert_rows");
}

void apply_outer_scales(const float* sums, const float* x_outer, const int32_t* x_rows, const float* w_outer,
                        MatrixView y, StreamHandle stream) {
  require(y.cols % 8 == 0 && reinterpret_cast<uintptr_t>(sums) % 16 == 0,
          "columns in eights and sums that are aligned to 16 bytes");
  if (y.rows == 0 || y.cols == 0) return;
  if (y.dtype == Dtype::kF32) return launch_outer<float, false>(sums, x_outer, x_rows, w_outer, y, stream);
  require(y.dtype == Dtype::kBF16, "bf16 or fp32");
  if (gpu::is_vectorizable(y)) return launch_outer<BF16, true>(sums, x_outer, x_rows, w_outer, y, stream);
  launch_outer<BF16, false>(sums, x_outer, x_rows, w_outer, y, stream);
}

}  // namespace accord::kernels::cuda
