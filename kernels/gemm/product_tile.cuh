#pragma once
// What kernels of products share: the tile of a block, and writing outputs. Parameters are those of
// gemm_forward.cuh, gemm_large.hpp or gemm_backward_cuda.cu.
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/mma.cuh"

namespace accord::kernels::cuda {

// Rows of C.
struct TileRows {
  int begin, count;
};

// Moves A, B and C to the batch's problem of this block.
template <class Params>
__device__ inline void move_to_batch(Params& p, const uint16_t*& b) {
  p.a += blockIdx.z * p.a_batch;
  b += blockIdx.z * p.b_batch;
  p.c = p.c_bf16 ? static_cast<void*>(static_cast<uint16_t*>(p.c) + blockIdx.z * p.c_batch)
                 : static_cast<void*>(static_cast<float*>(p.c) + blockIdx.z * p.c_batch);
}

// The rows of this block, and p as its problem has it: an expert's by rows of C (p.tiles), or by the
// contracted dimension (p.offsets), or a batch's. False: there is none.
template <class Params>
__device__ inline bool place_tile(Params& p, int tile_rows, TileRows& rows) {
  rows.begin = blockIdx.y * tile_rows;
  rows.count = min(p.m - rows.begin, tile_rows);
  if (p.tiles != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *p.num_tiles) return false;
    const GroupTile tile = p.tiles[blockIdx.y];
    rows = {tile.row_begin, tile.num_rows};
    p.b = static_cast<const uint16_t*>(p.experts[tile.expert].data);
  } else if (p.offsets != nullptr) {
    const int32_t first = p.offsets[blockIdx.z];
    p.l = p.offsets[blockIdx.z + 1] - first;
    p.a += first * p.lda;
    if (p.gather != nullptr) {
      p.gather += first;
    } else {
      p.b += first * p.ldb;
    }
    p.c = p.outputs[blockIdx.z];
  } else {
    move_to_batch(p, p.b);
  }
  return true;
}

// Writes two neighbouring outputs, of which the second may lie past the edge.
template <class Params>
__device__ inline void store_pair(const Params& p, int64_t row, int col, float x, float y) {
  const int64_t at = row * p.ldc + col;
  const bool both = col + 1 < p.n;
  if (p.c_bf16) {
    auto* c = static_cast<uint16_t*>(p.c) + at;
    if (both && (reinterpret_cast<uintptr_t>(c) & 3u) == 0) {
      *reinterpret_cast<uint32_t*>(c) = bf16_pair(x, y);
    } else {
      c[0] = static_cast<uint16_t>(bf16_bits(x));
      if (both) c[1] = static_cast<uint16_t>(bf16_bits(y));
    }
    return;
  }
  auto* c = static_cast<float*>(p.c) + at;
  c[0] = p.accumulate ? c[0] + x : x;
  if (both) c[1] = p.accumulate ? c[1] + y : y;
}

}  // namespace accord::kernels::cuda
