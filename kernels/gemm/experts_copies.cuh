#pragma once
// What the copying warpgroup of the products of experts does (gemm_experts.cuh).
#include "kernels/gemm/experts_stage.cuh"

namespace accord::kernels::cuda {

// What one thread of the copying warpgroup does for the stages of a tile. Rows past the tile's are left as
// they are: they reach outputs that nobody stores. Steps past the end are zeros.
//
// Registers decide its pace: a copy's address must stay until the copy has been taken up, so the compiler
// needs several to alternate. Rows are kept as 32-bit offsets for that, and what is needed next is asked for
// shortly before, not long.
template <WeightFormat F, bool ACROSS>
class ExpertCopies {
  using Stage = ExpertStage<F>;
  using Shared = ExpertShared<F, ACROSS>;
  static constexpr bool kHasOuter = F == WeightFormat::kNVFP4;
  static constexpr int kOuters = (kWideRows + kCopyThreads - 1) / kCopyThreads;
  static constexpr int kPerReach = F == WeightFormat::kMXFP8 ? 8 : 4;  // steps of sixteen scales
  static constexpr int kAhead = 8;                                     // steps between L2 and stage
  static constexpr int kApart =
      kCopyThreads / 8;  // rows of A, or of weights across l, between a thread's copies
  static constexpr int kRowCopies = kWideRows / kApart;
  static constexpr int kChunks = Stage::kRowBytes / 16;  // of a row of weights along l
  static constexpr int kRowsApart = kCopyThreads / kChunks;
  static constexpr int kWeightCopies = ACROSS ? kStepDepth / kApart : kExpertCols / kRowsApart;

 public:
  __device__ __forceinline__ ExpertCopies(const LargeParams& p, int tid, uint32_t shared)
      : p_(p), tid_(tid), shared_(shared) {}

  // The tile after the one that is copied, and then its weights: neither waits, used some steps later.
  __device__ __forceinline__ void look_at(const ExpertTile& tile) { next_tile_ = tile; }
  __device__ __forceinline__ void look_at_weights() { next_weight_ = p_.experts[next_tile_.expert]; }

  // Goes on to that tile.
  __device__ __forceinline__ void begin() {
    const ExpertTile tile = next_tile_;
    const GemmWeight weight = next_weight_;
    next_weight_.data = nullptr;
    col_begin_ = tile.col_begin;
    rows_left_ = tile.num_rows - tid_ / 8;
    data_ = static_cast<const unsigned char*>(weight.data);
    a_ = reinterpret_cast<const unsigned char*>(p_.a);
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      const int r = tile.row_begin + min(tid_ / 8 + i * kApart, tile.num_rows - 1);
      rows_[i] = static_cast<uint32_t>(row_of_a(r) * (p_.lda / 8)) + static_cast<uint32_t>(tid_ % 8);
    }
    if constexpr (ACROSS) {
      weights_ = data_ + (tid_ / 8 * p_.ldb + col_begin_ + tid_ % 8 * 8) * 2;
    } else {
      weights_ = data_ + (col_begin_ + tid_ / kChunks) * row_bytes() + tid_ % kChunks * 16;
    }
    if constexpr (Stage::kQuantized) {
      scales_ = scales_of(weight, col_begin_);
      if (!has_next_) held_ = scales(scales_, 0);
      has_next_ = false;
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
    if constexpr (Stage::kQuantized) put_scales(step, steps, stage + Stage::kScales);
    issue_rows(step, stage);
    issue_weights(step, stage + Stage::kWeights);
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
      if (i * kApart < rows_left_) copy_async<16>(to + i * kApart * 128, a_ + uint64_t{rows_[i]} * 16, in);
    }
    a_ += kStepDepth * 2;
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
        const unsigned char* from = weights_ + i * kApart * p_.ldb * 2;
        copy_async<16>(lane, from, in && chunk * 8 < cols);
        copy_async<16>(lane + kBlockBytes, from + 128, in && 64 + chunk * 8 < cols);
      }
      weights_ += p_.ldb * kStepDepth * 2;
    } else {
      const int chunk = tid_ % kChunks;
      const int first = tid_ / kChunks;
      const bool in = step * Stage::kRowBytes + chunk * 16 < row_bytes();
      const uint32_t lane =
          to + first * Stage::kRowStride + (Stage::kQuantized ? chunk : (chunk ^ (first % 8))) * 16;
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i) {
        if (first + i * kRowsApart < cols) {
          copy_async<16>(lane + i * kRowsApart * Stage::kRowStride, weights_ + i * kRowsApart * row_bytes(),
                         in);
        }
      }
      weights_ += Stage::kRowBytes;
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

  // Sixteen of a row's scales, from the first of a reach on.
  __device__ __forceinline__ uint4 scales(const uint8_t* row, int reach) const {
    const int first = reach * 16;
    const uint8_t* from = row + first;
    const auto bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from));
    return sixteen_scales(from, per_row() - first, bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1);
  }

  __device__ __forceinline__ void put_scales(int step, int steps, uint32_t to) {
    const int part = step % kPerReach;
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
    // Those of the next step, if they are others, have until then to arrive.
    if (step == steps - 1) {
      if (next_weight_.data == nullptr) return;
      held_ = scales(scales_of(next_weight_, next_tile_.col_begin), 0);
      has_next_ = true;
    } else if (part == kPerReach - 1) {
      const int reach = step / kPerReach + 1;
      held_ = scales(scales_, reach);
      if (reach * 16 + 32 < per_row()) prefetch_l2(scales_ + reach * 16 + 32);
    }
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
  const unsigned char* a_ = nullptr;  // at the step
  uint32_t rows_[kRowCopies] = {};    // and where each row lies from there, in chunks
  const unsigned char* weights_ = nullptr;
  const uint8_t* scales_ = nullptr;
  uint4 held_{};           // scales of the reach
  bool has_next_ = false;  // they are the next tile's
  float weight_outer_ = 0.0F;
  float outer_[kOuters] = {};
  uint32_t tiles_ = ~0u;  // begun so far, less one
  ExpertTile next_tile_{};
  GemmWeight next_weight_;
};

}  // namespace accord::kernels::cuda
