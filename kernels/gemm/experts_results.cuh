#pragma once
// From a multiplying warpgroup's accumulators (gemm_experts.cuh) to C: they turn in shared memory, some rows
// at a time, so that whole lines are written.
//
// acc[4 j + 2 half + e] of a thread: column warp * 16 + half * 8 + lane / 4 of the warpgroup's 64, row
// 8 j + 2 (lane % 4) + e of the tile. Up to 256 rows are one array, more are two halves.
#include "kernels/gemm/experts_stage.cuh"

namespace accord::kernels::cuda {

__device__ inline uint32_t round_pair(float low, float high) {  // NaN here is always the canonical one
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

template <WeightFormat F, int HALVES, int N>
class ExpertResults {
  using Shared = ExpertShared<F>;
  static constexpr int kRows = HALVES * N * 2;

 public:
  // `base`: of shared memory; `outers`: of the tile there.
  __device__ __forceinline__ ExpertResults(const LargeParams& p, float (&acc)[HALVES][N],
                                           const ExpertExtent& tile, int warpgroup, int tid, uint32_t base,
                                           uint32_t outers)
      : p_(p),
        acc_(acc),
        tile_(tile),
        warpgroup_(warpgroup),
        tid_(tid),
        out_(base + Shared::kOut + warpgroup * Shared::kOutRows * Shared::kOutStride),
        outers_(outers) {}

  __device__ __forceinline__ void store_bf16() {
    constexpr int kTurn = Shared::kOutRows;
    constexpr int kStride = Shared::kOutStride;
    const int lane = tid_ % 32;
    const uint32_t turn =
        out_ + (lane / 16 * 8 + lane % 8) * kStride + (tid_ / 32 * 16 + lane / 8 % 2 * 8) * 2;
    const uint32_t from = out_ + tid_ / 8 * kStride + tid_ % 8 * 16;
    const int col = tile_.col_begin + warpgroup_ * 64 + tid_ % 8 * 8;
    auto* to = static_cast<uint16_t*>(p_.c) + (tile_.row_begin + tid_ / 8) * p_.ldc + col;
    int left = col < p_.n ? tile_.num_rows - tid_ / 8 : 0;  // of the rows from this thread's next one on
#pragma unroll
    for (int begin = 0; begin < kRows; begin += kTurn) {
      if (begin >= tile_.num_rows) break;
      gpu::sync_threads(1 + warpgroup_, 128);
#pragma unroll
      for (int j = begin / 8; j < (begin + kTurn) / 8 && j < kRows / 8; j += 2) {
        finish(j);
        finish(j + 1);
        store_matrices_transposed(turn + (j * 8 - begin) * kStride, round_pair(at(j, 0), at(j, 1)),
                                  round_pair(at(j, 2), at(j, 3)), round_pair(at(j + 1, 0), at(j + 1, 1)),
                                  round_pair(at(j + 1, 2), at(j + 1, 3)));
      }
      gpu::sync_threads(1 + warpgroup_, 128);
      uint4 lines[kTurn / 16];  // all on their way before the first is written
#pragma unroll
      for (int i = 0; i < kTurn / 16 && begin + i * 16 < kRows; ++i) {
        lines[i] = load_shared_16(from + i * 16 * kStride);
      }
#pragma unroll
      for (int i = 0; i < kTurn / 16 && begin + i * 16 < kRows; ++i) {
        if (left > 0) *reinterpret_cast<uint4*>(to) = lines[i];
        to += 16 * p_.ldc;
        left -= 16;
      }
    }
  }

  // Set, or added to what is there, which is read a turn ahead.
  __device__ __forceinline__ void store_f32() {
    constexpr int kTurn = Shared::kOutRows / 2;
    constexpr int kStride = 64 * 4 + 16;
    static_assert(kTurn * kStride <= Shared::kOutRows * Shared::kOutStride);
    constexpr int kEach = kTurn / 8;
    const uint32_t turn = out_ + tid_ % 4 * 2 * kStride + (tid_ / 32 * 16 + tid_ % 32 / 4) * 4;
    const uint32_t from = out_ + tid_ / 16 * kStride + tid_ % 16 * 16;
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
  const uint32_t out_;
  const uint32_t outers_;
};

}  // namespace accord::kernels::cuda
