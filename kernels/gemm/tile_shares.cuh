#pragma once
// Shares of the slabs (a fixed number of rows of B each) of a list of tiles, one share per block, in order
// and about equal in time: a slab of a tile of more than eight rows of A takes longer.
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/gemm_cuda.hpp"

namespace accord::kernels::cuda {

constexpr int kDecodeTileRows = 16;

// Of a list that was complete when this kernel began, before it has waited for its predecessor: past the L1
// cache, which may hold what a list at the same place said to an earlier kernel.
__device__ inline GroupTile tile_at_rest(const GroupTile* tile) {
  return {__ldcg(&tile->expert), __ldcg(&tile->row_begin), __ldcg(&tile->num_rows)};
}
__device__ inline GemmWeight weight_at_rest(const GemmWeight* w) {
  const auto* words = reinterpret_cast<const int64_t*>(w);
  static_assert(sizeof(GemmWeight) == 4 * sizeof(int64_t));
  return {reinterpret_cast<const void*>(__ldcg(words)), reinterpret_cast<const uint8_t*>(__ldcg(words + 1)),
          reinterpret_cast<const float*>(__ldcg(words + 2)),
          reinterpret_cast<const void*>(__ldcg(words + 3))};
}

// Rows of A of a tile as mma's eight columns count them.
__device__ inline int padded_rows(int num_rows) { return num_rows <= 8 ? 8 : 16; }

// Of a slab of a tile, where one with up to 8 rows costs 4; `wide`: with 9 to 16.
__device__ inline int slab_cost(int num_rows, int wide) { return num_rows <= 8 ? 4 : wide; }

// A list of tiles at rest; the first 32 HELD lie in registers, spread over a warp, and were asked for
// together with their number, so that what begins a kernel waits once. Every lane calls everything alike.
template <int HELD>
class TileList {
 public:
  // `bound`: entries of the list, at least *num_tiles; 0: there is none.
  __device__ TileList(const GroupTile* tiles, const int32_t* num_tiles, int bound)
      : tiles_(tiles), lane_(static_cast<int>(threadIdx.x) % gpu::kWarp) {
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
      const int t = i * gpu::kWarp + lane_;
      if (t < bound) {
        rows_[i] = __ldcg(&tiles[t].num_rows);
        experts_[i] = __ldcg(&tiles[t].expert);
      }
    }
    count_ = bound > 0 ? __ldcg(num_tiles) : 0;
  }
  __device__ int count() const { return count_; }
  // Of tile first + lane, 0 past the last; `first`: a multiple of 32.
  __device__ int rows(int first) const {
    const int t = first + lane_;
    if (t >= count_) return 0;
    return first < HELD * gpu::kWarp ? held(rows_, first) : __ldcg(&tiles_[t].num_rows);
  }
  __device__ int expert(int tile) const {
    if (tile >= HELD * gpu::kWarp) return __ldcg(&tiles_[tile].expert);
    return __shfl_sync(gpu::kFullMask, held(experts_, tile), tile % gpu::kWarp);
  }

 private:
  static constexpr int kValues = HELD == 0 ? 1 : HELD;
  __device__ static int held(const int (&values)[kValues], int tile) {
    int x = values[0];
#pragma unroll
    for (int i = 1; i < HELD; ++i) x = tile >= i * gpu::kWarp ? values[i] : x;
    return x;
  }

  const GroupTile* tiles_;
  const int lane_;
  int count_;
  int rows_[kValues] = {};
  int experts_[kValues] = {};
};

struct SlabShare {
  int begin, end;
};

// floor(all * part / parts) for parts below 2^15.
__device__ inline int proportion(int all, int part, int parts) {
  const int each = all / parts;
  return each * part + (all - each * parts) * part / parts;
}

// Slabs of a product at most, so that costs and columns fit.
constexpr int64_t kMaxShareSlabs = int64_t{1} << 26;

// Of one tile.
__device__ inline SlabShare slab_share(int slabs) {
  const int block = static_cast<int>(blockIdx.x);
  const int blocks = static_cast<int>(gridDim.x);
  return {proportion(slabs, block, blocks), proportion(slabs, block + 1, blocks)};
}

// Slab i of tile t has number t * slabs + i; `wide` of slab_cost, at most 7.
template <int HELD>
__device__ SlabShare slab_share(const TileList<HELD>& tiles, int slabs, int wide) {
  const int block = static_cast<int>(blockIdx.x);
  const int blocks = static_cast<int>(gridDim.x);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int count = tiles.count();
  const auto cost_at = [&](int first) {
    const int rows = tiles.rows(first);
    return rows == 0 ? 0 : slab_cost(rows, wide);
  };
  int all = 0;
#pragma unroll 4
  for (int first = 0; first < count; first += gpu::kWarp) all += cost_at(first);
  all = __reduce_add_sync(gpu::kFullMask, all) * slabs;
  const int from = proportion(all, block, blocks);
  const int to = proportion(all, block + 1, blocks);

  // The first slab at or after a cost: in the tile whose costs reach past it.
  SlabShare share{count * slabs, count * slabs};
  int before = 0;
  for (int first = 0; first < count; first += gpu::kWarp) {
    const int t = first + lane;
    const int cost = cost_at(first);
    int sum = cost;
    for (int step = 1; step < gpu::kWarp; step *= 2) {
      const int below = __shfl_up_sync(gpu::kFullMask, sum, step);
      if (lane >= step) sum += below;
    }
    const int start = before + (sum - cost) * slabs;
    const auto place = [&](int target, int& slab) {
      const bool here = cost != 0 && start <= target && target < start + cost * slabs;
      const unsigned which = __ballot_sync(gpu::kFullMask, here);
      if (which == 0) return;
      const int at = t * slabs + (target - start + cost - 1) / max(cost, 1);
      slab = __shfl_sync(gpu::kFullMask, at, __ffs(static_cast<int>(which)) - 1);
    };
    place(from, share.begin);
    place(to, share.end);
    before += __shfl_sync(gpu::kFullMask, sum, gpu::kWarp - 1) * slabs;
  }
  return share;
}

}  // namespace accord::kernels::cuda
