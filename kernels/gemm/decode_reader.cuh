#pragma once
// How a warp of the kernel of gemm_decode.cuh brings its units of weights, ahead of their products.
#include <algorithm>

#include "kernels/gemm/decode_layout.cuh"
#include "kernels/gemm/gemm_forward.cuh"
#include "kernels/gemm/tile_shares.cuh"

namespace accord::kernels::cuda {

// Units of a tile: of both products, if there are two.
template <class T>
__device__ int units_of_tile(const ForwardParams& p) {
  return p.n / (T::kSlabs * T::kRows) * (p.experts_2 != nullptr ? 2 : 1);
}

template <class T, class List>
class DecodeReader {
  using Traits = typename T::Traits;

 public:
  // `ring`: the warp's. Takes every T::kWarps-th unit of the share from `begin` on.
  __device__ __forceinline__ DecodeReader(const ForwardParams& p, const List& list, const SlabShare& share,
                                          uint32_t ring, int warp, int lane)
      : p_(p),
        list_(list),
        end_(share.end),
        ring_(ring),
        lane_(lane),
        units_(units_of_tile<T>(p)),
        steps_(p.k / T::kStep),
        unit_(share.begin + warp),
        tile_(unit_ / units_),
        weight_(p.b) {
    if (unit_ < end_) open();
#pragma unroll
    for (int s = 0; s < T::kStages - 1; ++s) issue();
  }

  // Asks for the next stage, if there is one.
  __device__ __forceinline__ void issue() {
    if (unit_ < end_) {
      if constexpr (T::kFragments) {
        copy_fragments();
      } else {
        copy_rows();
      }
      if (++step_ == steps_) {
        step_ = 0;
        unit_ += T::kWarps;
        if (unit_ < end_) open();
      }
    }
    slot_ = T::next_slot(slot_);
    copy_commit();
  }

 private:
  __device__ __forceinline__ void open() {
    while (unit_ >= (tile_ + 1) * units_) ++tile_;
    int row = (unit_ - tile_ * units_) * (T::kSlabs * T::kRows);
    const bool second = row >= p_.n;
    if (second) row -= p_.n;
    const int source = tile_ * 2 + (second ? 1 : 0);
    if (p_.tiles != nullptr && source != open_) {
      open_ = source;
      weight_ = weight_at_rest((second ? p_.experts_2 : p_.experts) + list_.expert(tile_));
    }
    if constexpr (T::kFragments) {
      rows_ = static_cast<const unsigned char*>(weight_.fragments) +
              static_cast<int64_t>(row / T::kRows) * steps_ * T::kSlabBytes + lane_ * 16;
    } else {
      rows_ =
          static_cast<const unsigned char*>(weight_.data) + (row + lane_ / 8) * row_bytes() + lane_ % 8 * 16;
      scales_ = weight_.scales + static_cast<int64_t>(row + lane_ % 16) * row_scales();
    }
  }
  __device__ __forceinline__ int64_t row_bytes() const {
    return static_cast<int64_t>(p_.k) * Traits::kBitsPerValue / 8;
  }
  __device__ __forceinline__ int row_scales() const {
    return T::kPlain ? 0 : p_.k / std::max(Traits::kBlock, 1);
  }

  __device__ __forceinline__ void copy_fragments() {
#pragma unroll
    for (int slab = 0; slab < T::kSlabs; ++slab) {
      const unsigned char* from = rows_ + int64_t{slab} * steps_ * T::kSlabBytes;
      const uint32_t to = ring_ + slot_ + slab * T::kSlabBytes + lane_ * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) copy_async<16>(to + i * 512, from + i * 512, true);
      if (lane_ < T::kRows * T::kScaleBytes / 16) {
        copy_async<16>(to + T::kScaleOffset, from + T::kScaleOffset, true);
      }
    }
    rows_ += T::kSlabBytes;
  }

  __device__ __forceinline__ void copy_rows() {
    const uint32_t to = ring_ + slot_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async<16>(to + (lane_ / 8 + 4 * i) * T::kRowStride + lane_ % 8 * 16, rows_ + 4 * i * row_bytes(),
                     true);
    }
    rows_ += 128;
    if constexpr (!T::kPlain) {
      if (lane_ < 16) {
        const uint32_t scales_to = to + T::kScaleOffset + lane_ * T::kScaleBytes;
        if (reinterpret_cast<uintptr_t>(scales_) % T::kScaleBytes == 0) {
          copy_async<T::kScaleBytes>(scales_to, scales_, true);
        } else {
          for (int i = 0; i < T::kScaleBytes; ++i) {
            asm volatile("st.shared.u8 [%0], %1;\n" ::"r"(scales_to + i), "r"(uint32_t{scales_[i]})
                         : "memory");
          }
        }
      }
      scales_ += T::kScaleBytes;
    }
  }

  const ForwardParams& p_;
  const List& list_;
  const int end_;
  const uint32_t ring_;
  const int lane_;
  const int units_;
  const int steps_;
  int unit_;  // and step of the next stage
  int tile_;
  int step_ = 0;
  int open_ = -1;  // whose weight is at hand
  uint32_t slot_ = 0;
  const unsigned char* rows_ = nullptr;
  const uint8_t* scales_ = nullptr;
  GemmWeight weight_;
};

}  // namespace accord::kernels::cuda
