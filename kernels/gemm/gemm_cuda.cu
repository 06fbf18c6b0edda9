// Dispatch of the forward product, and the list of tiles of a grouped one (gemm_cuda.hpp).
#include "kernels/cuda/overlap.cuh"
#include "kernels/gemm/gemm_dispatch.cuh"

namespace accord::kernels::cuda {

extern template void forward_of_format<WeightFormat::kBF16>(const ForwardParams&, int32_t, int32_t, int32_t,
                                                            StreamHandle);
extern template void forward_of_format<WeightFormat::kMXFP8>(const ForwardParams&, int32_t, int32_t, int32_t,
                                                             StreamHandle);
extern template void forward_of_format<WeightFormat::kNVFP4>(const ForwardParams&, int32_t, int32_t, int32_t,
                                                             StreamHandle);

namespace {

// Rows of a tile for m plain rows.
int32_t plain_tile_rows(int64_t m) { return m <= 16 ? 16 : m <= 64 ? 64 : 128; }

// One block; thread e takes experts e, e + blockDim.x, ...: counts, an exclusive scan, then the tiles.
__global__ void tiles_kernel(const int32_t* offsets, int32_t experts, int32_t tile_rows, GroupTile* tiles,
                             int32_t* num_tiles) {
  __shared__ int32_t sums[1024];
  gpu::wait_for_previous();
  gpu::allow_next();
  const int tid = static_cast<int>(threadIdx.x);
  const int per_thread = (experts + 1023) / 1024;
  const int begin = min(tid * per_thread, experts);
  const int end = min(begin + per_thread, experts);
  int32_t count = 0;
  for (int e = begin; e < end; ++e) count += (offsets[e + 1] - offsets[e] + tile_rows - 1) / tile_rows;
  sums[tid] = count;
  __syncthreads();
  for (int step = 1; step < 1024; step *= 2) {
    const int32_t add = tid >= step ? sums[tid - step] : 0;
    __syncthreads();
    sums[tid] += add;
    __syncthreads();
  }
  int32_t at = sums[tid] - count;
  for (int e = begin; e < end; ++e) {
    for (int32_t row = offsets[e]; row < offsets[e + 1]; row += tile_rows) {
      tiles[at++] = {e, row, min(tile_rows, offsets[e + 1] - row)};
    }
  }
  if (tid == 1023) *num_tiles = sums[1023];
}

}  // namespace

bool large_products_available() {
  int device = 0;
  int major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major == 9;
}

void build_group_tiles(const int32_t* offsets, int32_t experts, int32_t tile_rows, GroupTile* tiles,
                       int32_t* num_tiles, StreamHandle stream) {
  gpu::launch_overlapped(tiles_kernel, 1, 1024, 0, stream, offsets, experts, tile_rows, tiles, num_tiles);
  check_launch("build_group_tiles");
}

void gemm_forward(const GemmForward& g, StreamHandle stream) {
  require(gemm_forward_takes(g), "gemm_forward_takes(g)");
  if (g.m == 0 || g.batch.count == 0) return;
  ForwardParams p{};
  p.a = reinterpret_cast<const uint16_t*>(g.a);
  p.lda = g.lda;
  p.a_outer = g.a_outer;
  p.b = g.b;
  p.c = g.c.data;
  p.ldc = g.c.ld;
  p.m = static_cast<int32_t>(g.m);
  p.n = static_cast<int32_t>(g.n);
  p.k = static_cast<int32_t>(g.k);
  p.inverse = 1.0F / (36.0F * static_cast<float>(g.a_range) * static_cast<float>(g.b_range));
  p.c_bf16 = g.c.bf16;
  p.accumulate = g.c.accumulate;
  p.a_batch = g.batch.a;
  p.b_batch = g.batch.b;
  p.c_batch = g.batch.c;
  p.b_at_rest = g.b_at_rest;
  int32_t tile_rows = plain_tile_rows(g.m);
  auto row_tiles = static_cast<int32_t>((g.m + tile_rows - 1) / tile_rows);
  if (g.groups != nullptr) {
    p.tiles = g.groups->tiles;
    p.num_tiles = g.groups->num_tiles;
    p.experts = g.groups->experts;
    p.gather = g.groups->gather;
    tile_rows = g.groups->tile_rows;
    row_tiles = g.groups->max_tiles;
  }
  switch (g.format) {
    case WeightFormat::kBF16:
      forward_of_format<WeightFormat::kBF16>(p, tile_rows, row_tiles, g.batch.count, stream);
      break;
    case WeightFormat::kMXFP8:
      forward_of_format<WeightFormat::kMXFP8>(p, tile_rows, row_tiles, g.batch.count, stream);
      break;
    case WeightFormat::kNVFP4:
      forward_of_format<WeightFormat::kNVFP4>(p, tile_rows, row_tiles, g.batch.count, stream);
      break;
    case WeightFormat::kF32:
      break;
  }
}

}  // namespace accord::kernels::cuda
