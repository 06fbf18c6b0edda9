#pragma once
// What the copying warpgroup of the products of experts does (gemm_experts.cuh).
#include "kernels/gemm/experts_stage.cuh"

namespace accord::kernels::cuda {

// What one thread of the copying warpgroup does for the stages of a tile. Rows past the tile's are left as
// they are: they reach outputs that nobody stores. Steps past the end are zeros. Addresses stay in registers
// of their own: one that is computed anew for every copy waits until the copy before has read it.
template <WeightFormat F, bool ACROSS>
class ExpertCopies {
  using Stage = ExpertStage<F>;
  using Shared = ExpertShared<F>;
  static constexpr bool kHasOuter = F == WeightFormat::kNVFP4;
  static constexpr int kOuters = (kWideRows + kCopyThreads - 1) / kCopyThreads;
  static constexpr int kPerReach = F == WeightFormat::kMXFP8 ? 8 : 4;  // steps of sixteen scales
  static constexpr int kAhead = F == WeightFormat::kBF16 ? 8 : 12;     // steps between L2 and stage
  static constexpr int kApart =
      kCopyThreads / 8;  // rows of A, or of weights across l, between a thread's copies
  static constexpr int kRowCopies = kWideRows / kApart;
  static constexpr int kChunks = Stage::kRowBytes / 16;  // of a row of weights along l
  static constexpr int kRowsApart = kCopyThreads / kChunks;
  static constexpr int kWeightCopies = ACROSS ? kStepDepth / kApart : kExpertCols / kRowsApart;

 public:
  __device__ __forceinline__ ExpertCopies(const LargeParams& p, int tid, uint32_t shared)
      : p_(p), tid_(tid), shared_(shared) {}

  // The tile after the one that is copied.
  __device__ __forceinline__ void look_ahead(const ExpertTile& tile) {
    next_tile_ = tile;
    next_weight_ = p_.experts[tile.expert];
  }
  __device__ __forceinline__ void look_no_further() { next_weight_.data = nullptr; }

  // Goes on to that tile.
  __device__ __forceinline__ void begin() {
    const ExpertTile tile = next_tile_;
    const GemmWeight weight = next_weight_;
    col_begin_ = tile.col_begin;
    rows_left_ = tile.num_rows - tid_ / 8;
    data_ = static_cast<const unsigned char*>(weight.data);
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      const int r = tile.row_begin + min(tid_ / 8 + i * kApart, tile.num_rows - 1);
      rows_[i] = reinterpret_cast<const unsigned char*>(p_.a + row_of_a(r) * p_.lda + tid_ % 8 * 8);
    }
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      if constexpr (ACROSS) {
        weights_[i] = data_ + ((tid_ / 8 + i * kApart) * p_.ldb + col_begin_ + tid_ % 8 * 8) * 2;
      } else {
        weights_[i] =
            data_ + (col_begin_ + tid_ / kChunks + i * kRowsApart) * row_bytes() + tid_ % kChunks * 16;
      }
      asm volatile("" : "+l"(weights_[i]));
    }
    if constexpr (Stage::kQuantized) {
      scales_ = scales_of(weight, col_begin_);
      next_ = scales(0);
    }
    ++tiles_;
    if (tid_ == 0) {
      store_shared_16(shared_ + Shared::kExtents + tiles_ % Shared::kTilesAhead * 16,
                      {static_cast<uint32_t>(tile.row_begin), static_cast<uint32_t>(tile.num_rows),
                       static_cast<uint32_t>(tile.col_begin), 0u});
    }
    if constexpr (kHasOuter) {
      weight_outer_ = *weight.outer;
#pragma unroll
      for (int i = 0; i < kOuters; ++i) {
        const int r = tid_ + i * kCopyThreads;
        if (r < tile.num_rows) outer_[i] = p_.a_outer[row_of_a(tile.row_begin + r)];
      }
    }
  }

  __device__ __forceinline__ void issue(int step, int steps, uint32_t stage) {
    issue_rows(step, stage);
    issue_weights(step, stage + Stage::kWeights);
    if constexpr (Stage::kQuantized) put_scales(step, stage + Stage::kScales);
    if constexpr (kHasOuter) {
      if (step == steps - 1) put_outers();
    }
    const int ahead = step + kAhead;
    if (ahead < steps) {
      prefetch(data_, col_begin_, ahead);
    } else if (next_weight_.data != nullptr && ahead - steps < steps) {
      prefetch(static_cast<const unsigned char*>(next_weight_.data), next_tile_.col_begin, ahead - steps);
      if constexpr (Stage::kQuantized) {
        if (ahead == steps) prefetch_l2(scales_of(next_weight_, next_tile_.col_begin));
      }
    }
  }

 private:
  __device__ __forceinline__ int row_of_a(int sorted) const {
    return p_.gather != nullptr ? p_.gather[sorted] : sorted;
  }
  __device__ __forceinline__ int64_t row_bytes() const {
    return static_cast<int64_t>(p_.l) * Stage::Traits::kBitsPerValue / 8;
  }
  __device__ __forceinline__ int per_row() const {
    return p_.l / (Stage::kQuantized ? Stage::Traits::kBlock : 1);
  }

  __device__ __forceinline__ void issue_rows(int step, uint32_t stage) {
    const int chunk = tid_ % 8;
    const int first = tid_ / 8;
    const bool in = step * kStepDepth + chunk * 8 < p_.l;
    const uint32_t to = stage + first * 128 + (chunk ^ (first % 8)) * 16;
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      if (i * kApart < rows_left_) copy_async<16>(to + i * kApart * 128, rows_[i], in);
    }
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) rows_[i] += kStepDepth * 2;
  }

  __device__ __forceinline__ void issue_weights(int step, uint32_t to) {
    const int cols = p_.n - col_begin_;
    if constexpr (ACROSS) {
      const int chunk = tid_ % 8;
      const int first = tid_ / 8;
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) {
        const bool in = step * kStepDepth + first + i * kApart < p_.l;
        const uint32_t lane = to + (first + i * kApart) * 128 + (chunk ^ (first % 8)) * 16;
        copy_async<16>(lane, weights_[i], in && chunk * 8 < cols);
        copy_async<16>(lane + kBlockBytes, weights_[i] + 128, in && 64 + chunk * 8 < cols);
      }
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) weights_[i] += p_.ldb * kStepDepth * 2;
    } else {
      const int chunk = tid_ % kChunks;
      const int first = tid_ / kChunks;
      const bool in = step * Stage::kRowBytes + chunk * 16 < row_bytes();
      const uint32_t lane =
          to + first * Stage::kRowStride + (Stage::kQuantized ? chunk : (chunk ^ (first % 8))) * 16;
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) {
        if (first + i * kRowsApart < cols) {
          copy_async<16>(lane + i * kRowsApart * Stage::kRowStride, weights_[i], in);
        }
      }
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) weights_[i] += Stage::kRowBytes;
    }
  }

  __device__ __forceinline__ void prefetch(const unsigned char* data, int col_begin, int step) const {
    if constexpr (ACROSS) {
      const int l = step * kStepDepth + tid_ / 2;
      const int col = col_begin + tid_ % 2 * 64;
      if (l < p_.l && col < p_.n) prefetch_l2(data + (static_cast<int64_t>(l) * p_.ldb + col) * 2);
    } else {
      if (step % (128 / Stage::kRowBytes) != 0) return;
      const int64_t at = static_cast<int64_t>(step) * Stage::kRowBytes;
      const int row = col_begin + tid_;
      if (row < p_.n && at < row_bytes()) prefetch_l2(data + row * row_bytes() + at);
    }
  }

  __device__ __forceinline__ const uint8_t* scales_of(const GemmWeight& weight, int col_begin) const {
    return weight.scales + static_cast<int64_t>(min(col_begin + tid_, p_.n - 1)) * per_row();
  }

  // Sixteen scales of row tid_, from the first of a reach on.
  __device__ __forceinline__ uint4 scales(int reach) const {
    const int first = reach * 16;
    if (first >= per_row()) return {};
    const uint8_t* from = scales_ + first;
    const auto bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from));
    return sixteen_scales(from, per_row() - first, bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1);
  }

  __device__ __forceinline__ void put_scales(int step, uint32_t to) {
    const int part = step % kPerReach;
    if (part == 0) {
      held_ = next_;
      next_ = scales(step / kPerReach + 1);
    }
    uint4 ready;
    if constexpr (F == WeightFormat::kNVFP4) {
      const uint32_t four = part == 0 ? held_.x : part == 1 ? held_.y : part == 2 ? held_.z : held_.w;
      ready = {nvfp4_scale(four & 0xffu), nvfp4_scale((four >> 8) & 0xffu), nvfp4_scale((four >> 16) & 0xffu),
               nvfp4_scale(four >> 24)};
    } else {
      const int word = part / 2;
      const uint32_t four = word == 0 ? held_.x : word == 1 ? held_.y : word == 2 ? held_.z : held_.w;
      const uint32_t two = part % 2 == 0 ? four : four >> 16;
      const E8m0Factor a = e8m0_factor(two & 0xffu);
      const E8m0Factor b = e8m0_factor((two >> 8) & 0xffu);
      ready = {a.first, a.second, b.first, b.second};
    }
    store_shared_16(to + tid_ * 16, ready);
  }

  // Of the rows of C, products of both operands' outer scales.
  __device__ __forceinline__ void put_outers() const {
#pragma unroll
    for (int i = 0; i < kOuters; ++i) {
      const int r = tid_ + i * kCopyThreads;
      if (r < kWideRows) {
        store_shared_4(shared_ + Shared::kOuter + (tiles_ % Shared::kTilesAhead * kWideRows + r) * 4,
                       __float_as_uint(outer_[i] * weight_outer_));
      }
    }
  }

  const LargeParams& p_;
  int tid_;
  uint32_t shared_;
  int col_begin_ = 0;
  int rows_left_ = 0;
  const unsigned char* data_ = nullptr;
  const unsigned char* rows_[kRowCopies] = {};
  const unsigned char* weights_[kWeightCopies] = {};
  const uint8_t* scales_ = nullptr;
  uint4 held_{}, next_{};
  float weight_outer_ = 0.0F;
  float outer_[kOuters] = {};
  uint32_t tiles_ = ~0u;  // begun so far, less one
  ExpertTile next_tile_{};
  GemmWeight next_weight_;
};

}  // namespace accord::kernels::cuda
