#pragma once
// C[m,n] = sum over k of A[m,k] B[n,k] for weights of many experts with 1 to 16 rows of A each: as fast as
// the weights can be read. Included by the files that instantiate it.
//
// A slab is 16 rows of B over the whole K; one or two are a unit. Blocks take shares of the units of all
// tiles, in order (tile_shares.cuh); the warps of a block take them in turn. A warp brings its units through
// a ring of its own and reads ahead from one unit into the next, so nothing drains between them
// (decode_reader.cuh). The rows of A of as many tiles as fit lie in shared memory together, and no barrier is
// passed between those (decode_tokens.cuh).
#include "kernels/cuda/overlap.cuh"
#include "kernels/gemm/decode_reader.cuh"
#include "kernels/gemm/decode_stage.cuh"
#include "kernels/gemm/decode_tokens.cuh"

namespace accord::kernels::cuda {

// Sums of a slab (decode_stage.cuh) to C, columns from `col` on of the first or second product.
template <class T, int TILES>
__device__ __forceinline__ void store_slab(const ForwardParams& p, float (&acc)[TILES][4],
                                           const GroupTile& tile, const DecodeTokens<T>& tokens, int place,
                                           int col) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const bool second = col >= p.n;
  if (second) col -= p.n;
  void* const c = second ? p.c_2 : p.c;
  if constexpr (T::kNvfp4) {
    const float* const outer = tokens.outer(place, second);
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const float2 both = *reinterpret_cast<const float2*>(outer + j * 8 + quad * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        acc[j][e] = ((acc[j][e] * kNvfp4Fold) * p.inverse) * (e % 2 == 0 ? both.x : both.y);
      }
    }
  }
  if (p.c_bf16) {
    // Turned: a row of A and two neighbouring rows of B to a lane.
    uint16_t* to = static_cast<uint16_t*>(c) + (tile.row_begin + group) * p.ldc + col + quad * 2;
#pragma unroll
    for (int j = 0; j < TILES; ++j, to += 8 * p.ldc) {
      const uint32_t low = transpose_matrix(round_pair(acc[j][0], acc[j][1]));
      const uint32_t high = transpose_matrix(round_pair(acc[j][2], acc[j][3]));
      if (j * 8 + group < tile.num_rows) {
        *reinterpret_cast<uint32_t*>(to) = low;
        *reinterpret_cast<uint32_t*>(to + 8) = high;
      }
    }
    return;
  }
  float* to = static_cast<float*>(c) + (tile.row_begin + quad * 2) * p.ldc + col + group;
#pragma unroll
  for (int j = 0; j < TILES; ++j, to += 8 * p.ldc) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float* const one = to + e % 2 * p.ldc + e / 2 * 8;
      if (j * 8 + quad * 2 + e % 2 >= tile.num_rows) continue;
      *one = p.accumulate ? *one + acc[j][e] : acc[j][e];
    }
  }
}

// The compiler leaves registers for 16 warps of a multiprocessor, or 24 where stages are few and small.
template <class T>
__global__ void __launch_bounds__(32 * T::kWarps, (T::kStages == 2 && T::kSlabs == 1 ? 24 : 16) / T::kWarps)
    decode_kernel(const ForwardParams p, int row_tiles, int max_tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t ring = shared_address(shared) + warp * T::kWarpBytes;
  const int units = units_of_tile<T>(p);
  const bool grouped = p.tiles != nullptr;
  if (!p.b_at_rest) gpu::wait_for_previous();
  using List = TileList<T::kFragments ? 4 : 0>;  // others have no registers to spare
  const List list(p.tiles, p.num_tiles, grouped ? row_tiles : 0);
  const SlabShare share = grouped ? slab_share(list, units, T::kPlain ? 4 : 5) : slab_share(units);
  DecodeReader<T, List> reader(p, list, share, ring, warp, lane);
  if (p.b_at_rest) gpu::wait_for_previous();
  gpu::allow_next();

  const DecodeTokens<T> tokens(p, shared, max_tokens);
  const DecodeStage<T> stage(ring, lane, tokens.stride());
  const int steps = p.k / T::kStep;
  uint32_t slot = 0;
  // `place`: of the tile's first row of A.
  const auto run_unit = [&](auto tiles, const GroupTile& tile, int place, int col) {
    float acc[T::kSlabs][decltype(tiles)::value][4] = {};
    uint32_t at = tokens.row(place);
    for (int step = 0; step < steps; ++step) {
      copy_wait<T::kStages - 2>();
      __syncwarp();
      reader.issue();
      stage.multiply(acc, slot, at);
      at += T::kStep * 2;
      slot = T::next_slot(slot);
    }
#pragma unroll
    for (int i = 0; i < T::kSlabs; ++i) store_slab<T>(p, acc[i], tile, tokens, place, col + i * T::kRows);
  };

  int unit = share.begin + warp;
  for (int at = share.begin; at < share.end;) {
    int index = at / units;
    const int next_index = tokens.bring(index, units, share.end);
    const int stop = min(share.end, next_index * units);
    GroupTile tile = decode_tile(p, index);
    int place = 0;
    for (; unit < stop; unit += T::kWarps) {
      while (unit >= (index + 1) * units) {
        place += padded_rows(tile.num_rows);
        tile = decode_tile(p, ++index);
      }
      const int col = (unit - index * units) * (T::kSlabs * T::kRows);
      if (tile.num_rows <= 8) {
        run_unit(Constant<1>{}, tile, place, col);
      } else {
        run_unit(Constant<2>{}, tile, place, col);
      }
    }
    at = stop;
  }
}

}  // namespace accord::kernels::cuda
