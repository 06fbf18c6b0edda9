#pragma once
// Tiles of the products of experts (gemm_experts.cuh) and what lies in shared memory: a ring of stages of 64
// steps of the contracted dimension, filled by one warpgroup and used by two.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/gemm/gemm_large.hpp"
#include "kernels/gemm/mma.cuh"
#include "kernels/gemm/weight_fragment.cuh"
#include "kernels/gemm/wgmma.cuh"

namespace accord::kernels::cuda {

constexpr int kExpertCols = 128;  // columns of C of a tile, 64 per warpgroup that multiplies
constexpr int kStepDepth = 64;
constexpr int kCopyThreads = 128;  // one for every column of a tile

// Up to kWideRows rows of A, swizzled for wgmma. Weights of kExpertCols columns of C: BF16 swizzled too,
// others as they lie, with their scales ready for decoding.
template <WeightFormat F>
struct ExpertStage {
  using Traits = WeightTraits<F>;
  static constexpr bool kQuantized = F != WeightFormat::kBF16;
  static constexpr int kRowBytes = kStepDepth * Traits::kBitsPerValue / 8;
  static constexpr int kRowStride = kRowBytes + (kQuantized ? 16 : 0);
  static constexpr int kWeights = kWideRows * kStepDepth * 2;  // offsets
  static constexpr int kScales = kWeights + kExpertCols * kRowStride;
  static constexpr int kBytes = kScales + (kQuantized ? kExpertCols * 16 : 0);
  static_assert(kBytes % 1024 == 0, "swizzled tiles start at multiples of 1024 bytes");
};

// A ring of stages; then a tile's results in BF16, which leave while the next tile is multiplied, or those of
// a turn in fp32; of the tiles that are at hand their extents and NVFP4's outer scales; barriers.
template <WeightFormat F, bool FP32>
struct ExpertShared {
  static constexpr int kRing = FP32 ? 4 : 3;
  static constexpr int kTilesAhead = kRing + 2;  // one is stored, kRing of one step are copied, one begins
  static constexpr int kOutStride = kExpertCols * 2 + 16;  // 16: eight rows hit distinct banks
  static constexpr int kTurnRows = 24;                     // of each multiplying warpgroup
  static constexpr int kTurnStride = 64 * 4 + 16;
  static constexpr int kOut = kRing * ExpertStage<F>::kBytes;  // offsets
  static constexpr int kOuter = kOut + (FP32 ? 2 * kTurnRows * kTurnStride : kWideRows * kOutStride);
  static constexpr int kExtents = kOuter + (F == WeightFormat::kNVFP4 ? kTilesAhead * kWideRows * 4 : 0);
  static constexpr int kBarriers = kExtents + kTilesAhead * 16;
  static constexpr int kBytes = kBarriers + 2 * kRing * 8 + 1024;
  static_assert(kBytes <= 232448, "shared memory of a block");
};

// A tile of C: rows of one expert, kExpertCols columns.
struct ExpertTile {
  int expert, row_begin, num_rows, col_begin;
};

// What the warpgroups that multiply need to know of a tile.
struct ExpertExtent {
  int row_begin, num_rows, col_begin;
};

// The second list of build_group_tiles.
struct WideTiles {
  const GroupTile* list;
  int columns;
  int count;
  __device__ __forceinline__ explicit WideTiles(const LargeParams& p) {
    list = p.tiles + *p.num_tiles;
    columns = (p.n + kExpertCols - 1) / kExpertCols;
    count = list->expert * columns;
    ++list;
  }
  // Columns of an expert follow each other: they share its rows of A in L2.
  __device__ __forceinline__ ExpertTile at(int index) const {
    const GroupTile t = list[index / columns];
    return {t.expert, t.row_begin, t.num_rows, index % columns * kExpertCols};
  }
};

// The fragments of half a stage, from 16 FIRST values of it on (mma m16n8k16: elements 2 quad, 2 quad + 1,
// and those 8 further, of two rows), from where the first row of this lane and its scales lie.
template <WeightFormat F, int FIRST>
__device__ __forceinline__ void decode_half(uint32_t (&w)[2][4], uint32_t row, uint32_t scale, int quad) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 s = load_shared_8(scale + half * 8 * 16 + FIRST * 4);
    const uint32_t from = row + half * 8 * ExpertStage<F>::kRowStride;
    if constexpr (F == WeightFormat::kMXFP8) {
#pragma unroll
      for (int ks = 0; ks < 2; ++ks) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint32_t codes = load_shared_2(from + quad * 2 + (FIRST + ks) * 16 + part * 8);
          const uint32_t spread = e4m3_bits(__byte_perm(codes, 0, 0x1404));
          w[ks][half + part * 2] = multiply_bf16x2(multiply_bf16x2(spread, s.x), s.y);
        }
      }
    } else {
      const uint4 a = load_shared_16(from + FIRST * 8);
      const uint32_t pick = quad | ((quad + 4) << 4);
      decode_nvfp4(__byte_perm(a.x, a.y, pick) & 0xffffu, s.x, w[0][half], w[0][half + 2]);
      decode_nvfp4(__byte_perm(a.z, a.w, pick) & 0xffffu, s.y, w[1][half], w[1][half + 2]);
    }
  }
}

}  // namespace accord::kernels::cuda
