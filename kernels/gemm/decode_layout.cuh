#pragma once
// Shared memory of the kernel of gemm_decode.cuh: every warp's ring of stages and decoded scales, then outer
// scales, then rows of A.
#include <algorithm>

#include "kernels/gemm/weight_fragment.cuh"

namespace accord::kernels::cuda {

// Bytes as they lie in the arena, or copies in the order of fragments.hpp.
enum class WeightOrder { kRows, kFragments };

// W: warps of a block. SLABS: that a warp takes at a time, one unit of work.
template <WeightFormat F, WeightOrder O, int W, int STAGES, int SLABS>
struct DecodeLayout {
  using Traits = WeightTraits<F>;
  static constexpr int kWarps = W;
  static constexpr int kStages = STAGES;
  static constexpr int kSlabs = SLABS;
  static constexpr bool kPlain = F == WeightFormat::kBF16;
  static constexpr bool kNvfp4 = F == WeightFormat::kNVFP4;
  static constexpr bool kFragments = O == WeightOrder::kFragments;
  static constexpr int kRows = 16;                            // of a slab
  static constexpr int kStep = 1024 / Traits::kBitsPerValue;  // values of K of a stage
  static constexpr int kRowStride = kFragments ? 128 : 128 + 16;
  static constexpr int kScaleBytes = kPlain ? 0 : kStep / std::max(Traits::kBlock, 1);  // of a row and stage
  static constexpr int kScaleOffset = kRows * kRowStride;
  static constexpr int kSlabBytes = kScaleOffset + kRows * kScaleBytes;
  static constexpr int kStageBytes = SLABS * kSlabBytes;
  static constexpr int kRingBytes = STAGES * kStageBytes;
  // NVFP4: of 16 groups, four at a time, of row pairs r and r + 8, the two bf16 scales of a group.
  static constexpr int kDecodedBytes = kNvfp4 ? kRows / 2 * 16 * 4 : 0;
  static constexpr int kWarpBytes = kRingBytes + SLABS * kDecodedBytes;
  static constexpr int kMaxTokens = 64;  // rows of A
  static constexpr int kOuters = W * kWarpBytes;
  static constexpr int kTokens = kOuters + 2 * kMaxTokens * 4;
  static_assert(kStageBytes % 16 == 0 && kWarpBytes % 16 == 0);
  static_assert(SLABS == 1 || kFragments);

  __host__ __device__ static int token_stride(int k) { return k * 2 + 64; }
  // Rows of A that fit in a block that may use `bytes`.
  static int tokens_that_fit(int k, int bytes) {
    return std::min((bytes - kTokens) / token_stride(k) / 8 * 8, kMaxTokens);
  }
  static int shared_bytes(int k, int tokens) { return kTokens + tokens * token_stride(k); }

  // The stage after the one at `slot` of the ring.
  __device__ static uint32_t next_slot(uint32_t slot) {
    return slot + kStageBytes == kRingBytes ? 0 : slot + kStageBytes;
  }
};

}  // namespace accord::kernels::cuda
