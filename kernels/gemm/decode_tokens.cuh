#pragma once
// The rows of A of the kernel of gemm_decode.cuh, all of K, in shared memory.
//
// Inside a group of 16 values of K a lane takes four neighbours: 0 and 1 as one register, 2 and 3 as the
// other; of quantized weights in the arena's order 0 and 2, 1 and 3, as codes unpack two at a time without
// being moved. BF16 weights come by ldmatrix, in the instruction's own order. A lane's values of two groups
// lie side by side.
#include "kernels/gemm/decode_layout.cuh"
#include "kernels/gemm/gemm_forward.cuh"
#include "kernels/gemm/tile_shares.cuh"

namespace accord::kernels::cuda {

__device__ inline GroupTile decode_tile(const ForwardParams& p, int tile) {
  return p.tiles != nullptr ? p.tiles[tile] : GroupTile{0, 0, p.m};
}

template <class T>
class DecodeTokens {
 public:
  // `shared`: the block's.
  __device__ __forceinline__ DecodeTokens(const ForwardParams& p, unsigned char* shared, int max_tokens)
      : p_(p),
        outer_(reinterpret_cast<float*>(shared + T::kOuters)),
        tokens_(shared_address(shared) + T::kTokens),
        stride_(T::token_stride(p.k)),
        max_tokens_(max_tokens) {}

  // Of row `place`, and the distance to the next.
  __device__ __forceinline__ uint32_t row(int place) const { return tokens_ + place * stride_; }
  __device__ __forceinline__ int stride() const { return stride_; }
  // NVFP4: products of the outer scales of rows from `place` on and of a weight, of the second product's if
  // so.
  __device__ __forceinline__ const float* outer(int place, bool second) const {
    return outer_ + (second ? T::kMaxTokens : 0) + place;
  }

  // Those of the tiles from `first` on whose units begin before `end` and that fit, one tile's after the
  // other's; returns the tile after them. A barrier of the block before and after.
  __device__ __forceinline__ int bring(int first, int units, int end) const {
    __syncthreads();  // the rows before are no longer read
    int place = 0;
    int turn = 0;
    int index = first;
    for (; index * units < end; ++index) {
      const GroupTile tile = decode_tile(p_, index);
      if (place + padded_rows(tile.num_rows) > max_tokens_) break;
      bring_tile(tile, place, turn);
      place += padded_rows(tile.num_rows);
    }
    __syncthreads();
    return index;
  }

 private:
  __device__ __forceinline__ int64_t row_of_a(const GroupTile& tile, int r) const {
    return p_.gather != nullptr ? p_.gather[tile.row_begin + r] : tile.row_begin + r;
  }

  // Rows in turn to warps, from `turn` on.
  __device__ __forceinline__ void bring_tile(const GroupTile& tile, int place, int& turn) const {
    constexpr int kAtOnce = 4;
    const int tid = static_cast<int>(threadIdx.x);
    const int chunks = p_.k / 8;
    for (int r = 0; r < tile.num_rows; ++r, turn = turn + 1 == T::kWarps ? 0 : turn + 1) {
      if (turn != tid / 32) continue;
      const auto* const from = reinterpret_cast<const uint4*>(p_.a + row_of_a(tile, r) * p_.lda);
      const uint32_t to = row(place + r);
      for (int c = tid % 32; c < chunks; c += kAtOnce * 32) {
        uint4 v[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (c + i * 32 < chunks) v[i] = __ldg(from + c + i * 32);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (c + i * 32 < chunks) put(to, c + i * 32, v[i]);
        }
      }
    }
    if constexpr (T::kNvfp4) {
      if (tid >= tile.num_rows) return;
      const float a = p_.a_outer[row_of_a(tile, tid)];
      outer_[place + tid] = a * *(p_.tiles != nullptr ? p_.experts[tile.expert].outer : p_.b.outer);
      if (p_.experts_2 != nullptr) {
        outer_[T::kMaxTokens + place + tid] = a * *p_.experts_2[tile.expert].outer;
      }
    }
  }

  // Half chunk % 2 of group chunk / 2: of lanes 0 and 1, or 2 and 3, of a quad.
  __device__ __forceinline__ static void put(uint32_t row, int chunk, const uint4& v) {
    const uint32_t pair = row + chunk / 4 * 64 + chunk / 2 % 2 * 8;
    if constexpr (T::kPlain) {
      const uint32_t to = pair + chunk % 2 * 4;
      store_shared_4(to, v.x);
      store_shared_4(to + 16, v.y);
      store_shared_4(to + 32, v.z);
      store_shared_4(to + 48, v.w);
    } else {
      const uint32_t to = pair + chunk % 2 * 32;
      if constexpr (T::kFragments) {
        store_shared_8(to, v.x, v.y);
        store_shared_8(to + 16, v.z, v.w);
      } else {
        store_shared_8(to, __byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632));
        store_shared_8(to + 16, __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
      }
    }
  }

  const ForwardParams& p_;
  float* const outer_;
  const uint32_t tokens_;
  const int stride_;
  const int max_tokens_;
};

}  // namespace accord::kernels::cuda
