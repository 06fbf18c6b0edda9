// Dispatch of the forward product, and the list of tiles of a grouped one (gemm_cuda.hpp).
#include <algorithm>

#include "kernels/cuda/overlap.cuh"
#include "kernels/gemm/gemm_dispatch.cuh"
#include "kernels/gemm/gemm_narrow.hpp"

namespace accord::kernels::cuda {

extern template void forward_of_format<WeightFormat::kBF16>(const ForwardParams&, int32_t, int32_t, int32_t,
                                                            StreamHandle);
extern template void forward_of_format<WeightFormat::kMXFP8>(const ForwardParams&, int32_t, int32_t, int32_t,
                                                             StreamHandle);
extern template void forward_of_format<WeightFormat::kNVFP4>(const ForwardParams&, int32_t, int32_t, int32_t,
                                                             StreamHandle);
extern template bool launch_decode<WeightFormat::kBF16>(const ForwardParams&, int32_t, StreamHandle);
extern template bool launch_decode<WeightFormat::kMXFP8>(const ForwardParams&, int32_t, StreamHandle);
extern template bool launch_decode<WeightFormat::kNVFP4>(const ForwardParams&, int32_t, StreamHandle);

namespace {

// Rows of a tile for m plain rows.
int32_t plain_tile_rows(int64_t m) { return m <= 16 ? 16 : m <= 64 ? 64 : 128; }

// One block; thread t takes some neighbouring experts: counts, an exclusive scan, then the tiles. Those of
// 128 rows are followed by the number of wide ones, in `expert`, and by these.
__global__ void tiles_kernel(const int32_t* offsets, int32_t experts, int32_t tile_rows, GroupTile* tiles,
                             int32_t* num_tiles) {
  __shared__ int2 sums[1024];
  gpu::wait_for_previous();
  gpu::allow_next();
  const int tid = static_cast<int>(threadIdx.x);
  const bool wide = tile_rows == 128;
  const int per_thread = (experts + 1023) / 1024;
  const int begin = min(tid * per_thread, experts);
  const int end = min(begin + per_thread, experts);
  int2 count{0, 0};
  for (int e = begin; e < end; ++e) {
    const int32_t rows = offsets[e + 1] - offsets[e];
    count.x += (rows + tile_rows - 1) / tile_rows;
    count.y += wide ? (rows + wide_rows(rows) - 1) / wide_rows(rows) : 0;
  }
  sums[tid] = count;
  __syncthreads();
  for (int step = 1; step < 1024; step *= 2) {
    const int2 add = tid >= step ? sums[tid - step] : int2{0, 0};
    __syncthreads();
    sums[tid].x += add.x;
    sums[tid].y += add.y;
    __syncthreads();
  }
  int32_t at = sums[tid].x - count.x;
  int32_t wide_at = sums[1023].x + 1 + sums[tid].y - count.y;
  for (int e = begin; e < end; ++e) {
    const int32_t last = offsets[e + 1];
    for (int32_t row = offsets[e]; row < last; row += tile_rows) {
      tiles[at++] = {e, row, min(tile_rows, last - row)};
    }
    if (!wide) continue;
    const int32_t part = wide_rows(last - offsets[e]);
    for (int32_t row = offsets[e]; row < last; row += part) {
      tiles[wide_at++] = {e, row, min(part, last - row)};
    }
  }
  if (tid == 1023) {
    *num_tiles = sums[1023].x;
    if (wide) tiles[sums[1023].x] = {sums[1023].y, 0, 0};
  }
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

namespace {

ForwardParams params_of(const GemmForward& g) {
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
  p.fragments = g.fragments;
  p.a_batch = g.batch.a;
  p.b_batch = g.batch.b;
  p.c_batch = g.batch.c;
  p.b_at_rest = g.b_at_rest && (g.groups == nullptr || g.groups->at_rest);
  if (g.groups != nullptr) {
    p.tiles = g.groups->tiles;
    p.num_tiles = g.groups->num_tiles;
    p.experts = g.groups->experts;
    p.gather = g.groups->gather;
  }
  return p;
}

// True: both products of experts with few rows, in one launch.
bool launch_pair(const GemmForward& a, const GemmForward& b, StreamHandle stream) {
  if (a.groups->tile_rows > kDecodeTileRows || a.n != b.n || a.c.ld != b.c.ld || a.fragments != b.fragments) {
    return false;
  }
  ForwardParams p = params_of(a);
  p.b_at_rest = p.b_at_rest && b.b_at_rest && b.groups->at_rest;
  p.experts_2 = b.groups->experts;
  p.c_2 = b.c.data;
  switch (a.format) {
    case WeightFormat::kBF16:
      return launch_decode<WeightFormat::kBF16>(p, a.groups->max_tiles, stream);
    case WeightFormat::kMXFP8:
      return launch_decode<WeightFormat::kMXFP8>(p, a.groups->max_tiles, stream);
    case WeightFormat::kNVFP4:
      return launch_decode<WeightFormat::kNVFP4>(p, a.groups->max_tiles, stream);
    case WeightFormat::kF32:
      break;
  }
  return false;
}

}  // namespace

void gemm_forward(const GemmForward& g, StreamHandle stream) {
  require(gemm_forward_takes(g), "gemm_forward_takes(g)");
  if (g.m == 0 || g.batch.count == 0) return;
  const ForwardParams p = params_of(g);
  int32_t tile_rows = plain_tile_rows(g.m);
  auto row_tiles = static_cast<int32_t>((g.m + tile_rows - 1) / tile_rows);
  if (g.groups != nullptr) {
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

void gemm_forward_together(std::span<const GemmForward> products, StreamHandle stream) {
  const auto in_one = [&](std::span<const GemmForward> some) {
    if (some[0].groups != nullptr) return some.size() == 2 && launch_pair(some[0], some[1], stream);
    const auto same = [&](const GemmForward& g) { return g.b_at_rest == some[0].b_at_rest; };
    if (some.size() < 2 || some.size() > kMostNarrow || some[0].m > kMostNarrowRows ||
        !large_products_available() || !std::all_of(some.begin(), some.end(), same)) {
      return false;
    }
    ForwardParams params[kMostNarrow];
    for (size_t i = 0; i < some.size(); ++i) params[i] = params_of(some[i]);
    return launch_narrow(some[0].format, {params, some.size()}, stream);
  };
  require(gemm_forward_takes_together(products), "products of one A, form of weight and list of tiles");
  if (products.empty() || products[0].m == 0) return;
  while (!products.empty() && !in_one(products)) {  // or without the first, often the widest
    gemm_forward(products[0], stream);
    products = products.subspan(1);
  }
}

}  // namespace accord::kernels::cuda
