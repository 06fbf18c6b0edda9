#pragma once
// From a multiplying warpgroup's accumulators (gemm_experts.cuh) to C: they turn in shared memory, so that
// whole lines are written.
//
// acc[4 j + 2 half + e] of a thread: column warp * 16 + half * 8 + lane / 4 of the warpgroup's 64, row
// 8 j + 2 (lane % 4) + e of the tile. Up to 256 rows are one array, more are two halves.
#include "kernels/gemm/experts_stage.cuh"

namespace accord::kernels::cuda {

// BF16 rows of a tile on their way from shared memory to C, 16 at a time by a warpgroup: some after every
// product of the next tile, which run meanwhile.
template <WeightFormat F>
class LeavingRows {
  using Shared = ExpertShared<F, false>;

 public:
  // Called when all of the tile lies there.
  __device__ __forceinline__ void begin(const LargeParams& p, const ExpertExtent& tile, int warpgroup,
                                        int tid, uint32_t base) {
    const int col = tile.col_begin + warpgroup * 64 + tid % 8 * 8;
    from_ = base + Shared::kOut + warpgroup * 128 + tid / 8 * Shared::kOutStride + tid % 8 * 16;
    to_ = static_cast<uint32_t>(((tile.row_begin + tid / 8) * p.ldc + col) / 8);
    left_ = col < p.n ? tile.num_rows - tid / 8 : 0;
  }
  template <int TIMES>
  __device__ __forceinline__ void go_on(const LargeParams& p) {
    uint4 lines[TIMES];
#pragma unroll
    for (int i = 0; i < TIMES; ++i) {
      if (left_ > i * 16) lines[i] = load_shared_16(from_ + i * 16 * Shared::kOutStride);
    }
#pragma unroll
    for (int i = 0; i < TIMES; ++i) {
      if (left_ > i * 16) static_cast<uint4*>(p.c)[to_ + i * static_cast<uint32_t>(p.ldc) * 2] = lines[i];
    }
    from_ += TIMES * 16 * Shared::kOutStride;
    to_ += TIMES * static_cast<uint32_t>(p.ldc) * 2;
    left_ -= TIMES * 16;
  }
  __device__ __forceinline__ void finish(const LargeParams& p) {
    while (left_ > 0) go_on<2>(p);
  }

 private:
  uint32_t from_ = 0;
  uint32_t to_ = 0;  // in 16 bytes of C
  int left_ = 0;     // of the rows from this thread's next one on
};

template <WeightFormat F, bool FP32, int HALVES, int N>
class ExpertResults {
  using Shared = ExpertShared<F, FP32>;
  static constexpr int kRows = HALVES * N * 2;

 public:
  // `base`: of shared memory; `outers`: of the tile there.
  __device__ __forceinline__ ExpertResults(const LargeParams& p, float (&acc)[HALVES][N],
                                           const ExpertExtent& tile, int warpgroup, int tid, uint32_t base,
                                           uint32_t outers)
      : p_(p), acc_(acc), tile_(tile), warpgroup_(warpgroup), tid_(tid), base_(base), outers_(outers) {}

  // To shared memory, where LeavingRows takes them up. Those of the tile before have left.
  __device__ __forceinline__ void turn_bf16() {
    constexpr int kStride = Shared::kOutStride;
    constexpr int kAtOnce = 16;
    const int lane = tid_ % 32;
    const uint32_t to = base_ + Shared::kOut + warpgroup_ * 128 + (lane / 16 * 8 + lane % 8) * kStride +
                        (tid_ / 32 * 16 + lane / 8 % 2 * 8) * 2;
    gpu::sync_threads(1 + warpgroup_, 128);
#pragma unroll
    for (int begin = 0; begin < kRows; begin += kAtOnce) {
      if (begin >= tile_.num_rows) break;
      const int j = begin / 8;
      finish(j);
      finish(j + 1);
      store_matrices_transposed(to + begin * kStride, round_pair(at(j, 0), at(j, 1)),
                                round_pair(at(j, 2), at(j, 3)), round_pair(at(j + 1, 0), at(j + 1, 1)),
                                round_pair(at(j + 1, 2), at(j + 1, 3)));
    }
    gpu::sync_threads(1 + warpgroup_, 128);
  }

  // Set, or added to what is there, which is read a turn ahead.
  __device__ __forceinline__ void store_f32() {
    constexpr int kTurn = Shared::kTurnRows;
    constexpr int kStride = Shared::kTurnStride;
    constexpr int kEach = kTurn / 8;
    const uint32_t out = base_ + Shared::kOut + warpgroup_ * kTurn * kStride;
    const uint32_t turn = out + tid_ % 4 * 2 * kStride + (tid_ / 32 * 16 + tid_ % 32 / 4) * 4;
    const uint32_t from = out + tid_ / 16 * kStride + tid_ % 16 * 16;
    const int col = tile_.col_begin + warpgroup_ * 64 + tid_ % 16 * 4;
    auto* to = static_cast<float*>(p_.c) + (tile_.row_begin + tid_ / 16) * p_.ldc + col;
    int left = col < p_.n ? tile_.num_rows - tid_ / 16 : 0;
    const auto read = [&](const float* c, int rows, float4(&sums)[kEach]) {
      if (!p_.accumulate) return;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (rows > i * 8) sums[i] = *reinterpret_cast<const float4*>(c);
        c += 8 * p_.ldc;
      }
    };
    float4 next[kEach] = {};
    read(to, left, next);
#pragma unroll
    for (int begin = 0; begin < kRows; begin += kTurn) {
      if (begin >= tile_.num_rows) break;
      gpu::sync_threads(1 + warpgroup_, 128);
#pragma unroll
      for (int j = begin / 8; j < (begin + kTurn) / 8 && j < kRows / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          store_shared_4(turn + (j * 8 - begin + i % 2) * kStride + i / 2 * 32, __float_as_uint(at(j, i)));
        }
      }
      gpu::sync_threads(1 + warpgroup_, 128);
      float4 sums[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) sums[i] = next[i];
      if (begin + kTurn < kRows) read(to + kTurn * p_.ldc, left - kTurn, next);
      uint4 lines[kEach];
#pragma unroll
      for (int i = 0; i < kEach && begin + i * 8 < kRows; ++i) {
        lines[i] = load_shared_16(from + i * 8 * kStride);
      }
#pragma unroll
      for (int i = 0; i < kEach && begin + i * 8 < kRows; ++i) {
        float4 x = {__uint_as_float(lines[i].x), __uint_as_float(lines[i].y), __uint_as_float(lines[i].z),
                    __uint_as_float(lines[i].w)};
        if (p_.accumulate) x = {sums[i].x + x.x, sums[i].y + x.y, sums[i].z + x.z, sums[i].w + x.w};
        if (left > 0) *reinterpret_cast<float4*>(to) = x;
        to += 8 * p_.ldc;
        left -= 8;
      }
    }
  }

 private:
  __device__ __forceinline__ float& at(int j, int i) { return acc_[j / (N / 4)][j % (N / 4) * 4 + i]; }

  // The epilogue of rows 8 j to 8 j + 7 of the tile.
  __device__ __forceinline__ void finish(int j) {
    if constexpr (F == WeightFormat::kNVFP4) {
      const uint2 both = load_shared_8(outers_ + (j * 8 + tid_ % 4 * 2) * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        at(j, i) = ((at(j, i) * kNvfp4Fold) * p_.inverse) * __uint_as_float(i % 2 == 0 ? both.x : both.y);
      }
    }
  }

  const LargeParams& p_;
  float (&acc_)[HALVES][N];
  const ExpertExtent& tile_;
  const int warpgroup_;
  const int tid_;
  const uint32_t base_;
  const uint32_t outers_;
};

}  // namespace accord::kernels::cuda
