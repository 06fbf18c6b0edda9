#pragma once
// The products of one stage of a warp's ring (gemm_decode.cuh): slabs are the 16-row operand of mma m16n8k16,
// decoded in registers; rows of A its eight columns, one or two times.
#include "kernels/gemm/decode_layout.cuh"
#include "kernels/gemm/decode_operand.cuh"

namespace accord::kernels::cuda {

template <class T>
class DecodeStage {
  using Traits = typename T::Traits;
  template <int TILES>
  using Sums = float[TILES][4];  // row of B group (+8 from 2 on), row of A 8 tile + 2 quad (+1 if odd)

 public:
  __device__ __forceinline__ DecodeStage(uint32_t ring, int lane, int token_stride)
      : ring_(ring), lane_(lane), group_(lane / 4), quad_(lane % 4), token_stride_(token_stride) {}

  // `tokens`: the tile's first row of A at the stage's first value of K. The stage has arrived.
  template <int TILES>
  __device__ __forceinline__ void multiply(Sums<TILES> (&acc)[T::kSlabs], uint32_t slot,
                                           uint32_t tokens) const {
    tokens += group_ * token_stride_ + quad_ * 16;
    if constexpr (T::kPlain) {
      multiply_plain(acc[0], ring_ + slot, tokens);
    } else if constexpr (T::kNvfp4) {
      decode_scales(slot);
      multiply_codes<false>(acc, slot, tokens, {});
    } else {
      Scales scales;
      if (read_scales(slot, scales)) {
        multiply_codes<true>(acc, slot, tokens, scales);
      } else {
        multiply_codes<false>(acc, slot, tokens, scales);
      }
    }
  }

 private:
  struct Scales {
    uint32_t words[T::kSlabs][2] = {};  // MXFP8: four blocks of rows group and group + 8
  };

  __device__ __forceinline__ uint32_t scales_at(uint32_t slot, int slab) const {
    return ring_ + slot + slab * T::kSlabBytes + T::kScaleOffset;
  }
  __device__ __forceinline__ uint32_t decoded_at(int slab) const {
    return ring_ + T::kRingBytes + slab * T::kDecodedBytes;
  }
  __device__ __forceinline__ uint4 tokens_at(uint32_t tokens, int tile, int two_groups) const {
    return load_shared_16(tokens + tile * 8 * token_stride_ + two_groups * 64);
  }
  template <int TILES>
  __device__ __forceinline__ static void multiply_group(Sums<TILES>& acc, const uint32_t (&w)[4], int group,
                                                        const uint4 (&two_groups)[TILES]) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const uint4 v = two_groups[j];
      mma_16816(acc[j], w, group % 2 == 0 ? v.x : v.z, group % 2 == 0 ? v.y : v.w);
    }
  }

  // NVFP4's block scales as bf16, where the warp's lanes find them.
  __device__ __forceinline__ void decode_scales(uint32_t slot) const {
#pragma unroll
    for (int slab = 0; slab < T::kSlabs; ++slab) {
      uint2 codes;  // four groups of rows group and group + 8
      if constexpr (T::kFragments) {
        codes = load_shared_8(scales_at(slot, slab) + (quad_ * 8 + group_) * 8);
      } else {
        const uint32_t from = scales_at(slot, slab) + group_ * T::kScaleBytes + quad_ * 4;
        const uint32_t low = load_shared_4(from);
        const uint32_t high = load_shared_4(from + 8 * T::kScaleBytes);
        codes = {__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632)};
      }
      const uint2 first = nvfp4_scale_pairs(codes.x);
      const uint2 last = nvfp4_scale_pairs(codes.y);
      store_shared_16(decoded_at(slab) + (quad_ * 8 + group_) * 16, {first.x, first.y, last.x, last.y});
    }
    __syncwarp();
  }

  // MXFP8's; whether one of the warp's exceeds 2^7 and so needs two factors.
  __device__ __forceinline__ bool read_scales(uint32_t slot, Scales& scales) const {
    uint32_t above = 0;  // bytes above 134
#pragma unroll
    for (int slab = 0; slab < T::kSlabs; ++slab) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = T::kFragments ? group_ * 2 + half : group_ + half * 8;
        uint32_t& word = scales.words[slab][half];
        word = load_shared_4(scales_at(slot, slab) + at * T::kScaleBytes);
        above |= ((word & 0x7f7f7f7fu) + 0x79797979u) & word;
      }
    }
    return __any_sync(0xffffffffu, (above & 0x80808080u) != 0);
  }
  template <bool LARGE>
  __device__ __forceinline__ static E8m0Factor factor(uint32_t words, int block) {
    const uint32_t e = (words >> (block * 8)) & 0xffu;
    return LARGE ? e8m0_factor(e) : E8m0Factor{e * 0x00800080u + 120u * 0x00800080u, 0x3f803f80u};
  }

  template <int TILES>
  __device__ __forceinline__ void multiply_plain(Sums<TILES>& acc, uint32_t stage, uint32_t tokens) const {
    constexpr int kGroups = T::kStep / 16;
    const uint32_t from = stage + lane_ % 16 * T::kRowStride + lane_ / 16 * 16;
    uint32_t w[kGroups][4];
    uint4 t[kGroups / 2][TILES];
#pragma unroll
    for (int ks = 0; ks < kGroups; ++ks) load_matrices(w[ks], from + ks * 32);
#pragma unroll
    for (int i = 0; i < kGroups / 2; ++i) {
#pragma unroll
      for (int j = 0; j < TILES; ++j) t[i][j] = tokens_at(tokens, j, i);
    }
#pragma unroll
    for (int ks = 0; ks < kGroups; ++ks) multiply_group(acc, w[ks], ks, t[ks / 2]);
  }

  template <bool LARGE, int TILES>
  __device__ __forceinline__ void multiply_codes(Sums<TILES> (&acc)[T::kSlabs], uint32_t slot,
                                                 uint32_t tokens, const Scales& scales) const {
    if constexpr (T::kFragments) {
#pragma unroll
      for (int part = 0; part < 4; ++part) multiply_part<LARGE>(acc, ring_ + slot, part, tokens, scales);
    } else {
#pragma unroll
      for (int part = 0; part < T::kStep / 128; ++part) {
        multiply_rows<LARGE>(acc[0], ring_ + slot, part, tokens, scales);
      }
    }
  }

  // A quarter of a record of fragments: what a read of 16 bytes brings.
  template <bool LARGE, int TILES>
  __device__ __forceinline__ void multiply_part(Sums<TILES> (&acc)[T::kSlabs], uint32_t stage, int part,
                                                uint32_t tokens, const Scales& scales) const {
    constexpr int kGroups = T::kNvfp4 ? 4 : 2;
    uint4 t[kGroups / 2][TILES];
#pragma unroll
    for (int i = 0; i < kGroups / 2; ++i) {
#pragma unroll
      for (int j = 0; j < TILES; ++j) t[i][j] = tokens_at(tokens, j, part * kGroups / 2 + i);
    }
#pragma unroll
    for (int slab = 0; slab < T::kSlabs; ++slab) {
      const uint4 words = load_shared_16(stage + slab * T::kSlabBytes + part * 512 + lane_ * 16);
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
      if constexpr (T::kNvfp4) {
        const uint4 v = load_shared_16(decoded_at(slab) + (part * 8 + group_) * 16);
        const uint32_t scale[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          uint32_t w[4];
          decode_nvfp4_fragment(word[i], scale[i], w);
          multiply_group(acc[slab], w, i, t[i / 2]);
        }
      } else {
        const E8m0Factor low = factor<LARGE>(scales.words[slab][0], part);
        const E8m0Factor high = factor<LARGE>(scales.words[slab][1], part);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          uint32_t w[4];
          decode_mxfp8_fragment<LARGE>(word[i * 2], low, w[0], w[2]);
          decode_mxfp8_fragment<LARGE>(word[i * 2 + 1], high, w[1], w[3]);
          multiply_group(acc[slab], w, i, t[i / 2]);
        }
      }
    }
  }

  // Eight groups of bytes as they lie in the arena, all reads of them first.
  template <bool LARGE, int TILES>
  __device__ __forceinline__ void multiply_rows(Sums<TILES>& acc, uint32_t stage, int part, uint32_t tokens,
                                                const Scales& scales) const {
    constexpr int kGroups = 8;
    const uint32_t from = stage + group_ * T::kRowStride + quad_ * (Traits::kBitsPerValue / 2);
    [[maybe_unused]] uint32_t scale[kGroups];  // NVFP4: of rows group and group + 8
    if constexpr (T::kNvfp4) {
#pragma unroll
      for (int i = 0; i < kGroups; i += 4) {
        const uint4 v = load_shared_16(decoded_at(0) + ((part * 2 + i / 4) * 8 + group_) * 16);
        scale[i] = v.x;
        scale[i + 1] = v.y;
        scale[i + 2] = v.z;
        scale[i + 3] = v.w;
      }
    }
    uint32_t codes[2][kGroups];
    uint4 t[kGroups / 2][TILES];
#pragma unroll
    for (int ks = 0; ks < kGroups; ++ks) {
      const uint32_t at = from + (part * kGroups + ks) * (2 * Traits::kBitsPerValue);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = at + half * 8 * T::kRowStride;
        codes[half][ks] = T::kNvfp4 ? load_shared_2(row) : load_shared_4(row);
      }
      if (ks % 2 == 1) continue;
#pragma unroll
      for (int j = 0; j < TILES; ++j) t[ks / 2][j] = tokens_at(tokens, j, (part * kGroups + ks) / 2);
    }
#pragma unroll
    for (int ks = 0; ks < kGroups; ++ks) {
      uint32_t w[4];
      if constexpr (T::kNvfp4) {
        decode_nvfp4_even_odd<false>(codes[0][ks], scale[ks], w[0], w[2]);
        decode_nvfp4_even_odd<true>(codes[1][ks], scale[ks], w[1], w[3]);
      } else {
        const E8m0Factor low = factor<LARGE>(scales.words[0][0], ks / 2);
        const E8m0Factor high = factor<LARGE>(scales.words[0][1], ks / 2);
        decode_mxfp8_even_odd<LARGE>(codes[0][ks], low, w[0], w[2]);
        decode_mxfp8_even_odd<LARGE>(codes[1][ks], high, w[1], w[3]);
      }
      multiply_group(acc, w, ks, t[ks / 2]);
    }
  }

  const uint32_t ring_;
  const int lane_, group_, quad_;
  const int token_stride_;
};

}  // namespace accord::kernels::cuda
