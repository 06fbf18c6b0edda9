#pragma once
// C[m,n] = sum over k of A[m,k] B[n,k] for weights of many experts with 1 to 16 rows of A each: as fast as
// the weights can be read. Included by the files that instantiate it.
//
// A slab is 16 rows of B over the whole K. Blocks take shares of the slabs of all tiles, in order; the W
// warps of a block take them in turn. A warp brings its slabs, bytes as they lie, through a ring of its own
// of STAGES stages of 128 bytes a row, and reads ahead from one slab into the next, so nothing drains between
// slabs. The rows of A (all of K) of as many tiles as fit lie in shared memory together, and no barrier is
// passed between those. The slab is the 16-row operand of mma m16n8k16, decoded in registers.
//
// Inside a group of 16 values of K a lane takes four neighbours, 0 and 2 as one register, 1 and 3 as the
// other: codes then unpack two at a time without being moved. Rows of A lie in shared memory in that order,
// a lane's values of two groups side by side.
#include <algorithm>

#include "kernels/cuda/overlap.cuh"
#include "kernels/gemm/decode_operand.cuh"
#include "kernels/gemm/gemm_forward.cuh"
#include "kernels/gemm/tile_shares.cuh"

namespace accord::kernels::cuda {

// Bytes as they lie in the arena, or copies in the order of fragments.hpp.
enum class WeightOrder { kRows, kFragments };

// SLABS: that a warp takes at a time.
template <WeightFormat F, WeightOrder O, int W, int STAGES, int SLABS>
struct DecodeLayout {
  using Traits = WeightTraits<F>;
  static constexpr bool kPlain = F == WeightFormat::kBF16;
  static constexpr bool kFragments = O == WeightOrder::kFragments;
  static constexpr int kThreads = 32 * W;
  static constexpr int kRows = 16;                            // of a slab
  static constexpr int kStep = 1024 / Traits::kBitsPerValue;  // values of K of a stage
  static constexpr int kRowStride = kFragments ? 128 : 128 + 16;
  static constexpr int kScaleBytes = kPlain ? 0 : kStep / std::max(Traits::kBlock, 1);  // of a row and stage
  static constexpr int kScaleOffset = kRows * kRowStride;
  static constexpr int kSlabBytes = kScaleOffset + kRows * kScaleBytes;
  static constexpr int kStageBytes = SLABS * kSlabBytes;
  // NVFP4: of 16 groups, four at a time, of row pairs r and r + 8, the two bf16 scales of a group.
  static constexpr int kDecodedBytes = F == WeightFormat::kNVFP4 ? kRows / 2 * 16 * 4 : 0;
  static constexpr int kWarpBytes = STAGES * kStageBytes + SLABS * kDecodedBytes;
  static constexpr int kMaxTokens = 64;  // rows of A in shared memory
  static constexpr int kOuterBytes = kMaxTokens * 4;
  static_assert(kStageBytes % 16 == 0 && kWarpBytes % 16 == 0);
  static_assert(SLABS == 1 || kFragments);
  __host__ __device__ static int token_stride(int k) { return k * 2 + 64; }
  // Rows of A that fit beside the rings of a block that may use `bytes`.
  static int tokens_that_fit(int k, int bytes) {
    return std::min((bytes - W * kWarpBytes - kOuterBytes) / token_stride(k) / 8 * 8, kMaxTokens);
  }
  static int shared_bytes(int k, int tokens) {
    return W * kWarpBytes + kOuterBytes + tokens * token_stride(k);
  }
};

template <WeightFormat F, WeightOrder O, int W, int STAGES, int SLABS>
__global__ void __launch_bounds__(32 * W, (STAGES == 2 && SLABS == 1 ? 24 : 16) / W)
    decode_kernel(const ForwardParams p, int row_tiles, int max_tokens) {
  using T = DecodeLayout<F, O, W, STAGES, SLABS>;
  using Traits = WeightTraits<F>;
  constexpr bool kNvfp4 = F == WeightFormat::kNVFP4;
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const uint32_t ring = shared_address(shared) + warp * T::kWarpBytes;
  const uint32_t decoded = ring + STAGES * T::kStageBytes;
  auto* const outer = reinterpret_cast<float*>(shared + W * T::kWarpBytes);
  const uint32_t tokens = shared_address(shared) + W * T::kWarpBytes + T::kOuterBytes;
  const int token_stride = T::token_stride(p.k);

  const int slabs = p.n / (SLABS * T::kRows);  // of a tile; SLABS at a time are one of them
  const bool grouped = p.tiles != nullptr;
  if (!p.b_at_rest) gpu::wait_for_previous();
  // BF16 has no registers to spare.
  const TileList<T::kPlain ? 0 : 4> list(p.tiles, p.num_tiles, grouped ? row_tiles : 0);
  const SlabShare share = grouped ? slab_share(list, slabs, T::kPlain ? 4 : 5) : slab_share(slabs);
  const int steps = p.k / T::kStep;
  const int64_t row_bytes = static_cast<int64_t>(p.k) * Traits::kBitsPerValue / 8;
  const int row_scales = T::kPlain ? 0 : p.k / std::max(Traits::kBlock, 1);

  // ---- reading ahead: the next stage to bring is step next_step of slab next_slab
  int next_slab = share.begin + warp;
  int next_tile = next_slab / slabs;
  int next_step = 0;
  uint32_t slot_in = 0;
  const unsigned char* rows_from = nullptr;
  const uint8_t* scales_from = nullptr;
  int open_tile = -1;
  GemmWeight weight = p.b;
  const auto open_slab = [&] {
    while (next_slab >= (next_tile + 1) * slabs) ++next_tile;
    const int row = (next_slab - next_tile * slabs) * (SLABS * T::kRows);
    if (grouped && next_tile != open_tile) {
      open_tile = next_tile;
      weight = weight_at_rest(p.experts + list.expert(next_tile));
    }
    if constexpr (T::kFragments) {
      rows_from = static_cast<const unsigned char*>(weight.fragments) +
                  static_cast<int64_t>(row / T::kRows) * steps * T::kSlabBytes + lane * 16;
    } else {
      rows_from =
          static_cast<const unsigned char*>(weight.data) + (row + lane / 8) * row_bytes + lane % 8 * 16;
      scales_from = weight.scales + static_cast<int64_t>(row + lane % 16) * row_scales;
    }
  };
  const auto issue = [&] {
    if (next_slab < share.end) {
      const uint32_t to = ring + slot_in;
      if constexpr (T::kFragments) {
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab) {
          const unsigned char* from = rows_from + int64_t{slab} * steps * T::kSlabBytes;
          const uint32_t slab_to = to + slab * T::kSlabBytes + lane * 16;
#pragma unroll
          for (int i = 0; i < 4; ++i) copy_async<16>(slab_to + i * 512, from + i * 512, true);
          if (lane < T::kRows * T::kScaleBytes / 16) {
            copy_async<16>(slab_to + T::kScaleOffset, from + T::kScaleOffset, true);
          }
        }
        rows_from += T::kSlabBytes;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          copy_async<16>(to + (lane / 8 + 4 * i) * T::kRowStride + lane % 8 * 16,
                         rows_from + 4 * i * row_bytes, true);
        }
        if constexpr (!T::kPlain) {
          if (lane < 16) {
            const uint32_t scales_to = to + T::kScaleOffset + lane * T::kScaleBytes;
            if (reinterpret_cast<uintptr_t>(scales_from) % T::kScaleBytes == 0) {
              copy_async<T::kScaleBytes>(scales_to, scales_from, true);
            } else {
              for (int i = 0; i < T::kScaleBytes; ++i) {
                asm volatile("st.shared.u8 [%0], %1;\n" ::"r"(scales_to + i), "r"(uint32_t{scales_from[i]})
                             : "memory");
              }
            }
          }
        }
        rows_from += 128;
        scales_from += T::kScaleBytes;
      }
      if (++next_step == steps) {
        next_step = 0;
        next_slab += W;
        if (next_slab < share.end) open_slab();
      }
    }
    slot_in = slot_in + T::kStageBytes == STAGES * T::kStageBytes ? 0 : slot_in + T::kStageBytes;
    copy_commit();
  };
  if (next_slab < share.end) open_slab();
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) issue();

  if (p.b_at_rest) gpu::wait_for_previous();
  gpu::allow_next();

  const auto tile_at = [&](int tile) { return grouped ? p.tiles[tile] : GroupTile{0, 0, p.m}; };
  const auto a_row = [&](const GroupTile& tile, int r) -> int64_t {
    return p.gather != nullptr ? p.gather[tile.row_begin + r] : tile.row_begin + r;
  };
  // Rows of A of the tiles from `first` on that fit, one tile's after the other's; returns the tile after
  // them.
  const auto bring_tokens = [&](int first) {
    __syncthreads();  // the rows before are no longer read
    const int chunks = p.k / 8;
    int turn = 0;
    int place = 0;
    int index = first;
    for (; index * slabs < share.end; ++index) {
      const GroupTile tile = tile_at(index);
      if (place + padded_rows(tile.num_rows) > max_tokens) break;
      for (int r = 0; r < tile.num_rows; ++r, turn = turn + 1 == W ? 0 : turn + 1) {
        if (turn != warp) continue;
        const uint16_t* from = p.a + a_row(tile, r) * p.lda;
        const uint32_t to = tokens + (place + r) * token_stride;
        for (int c = lane; c < chunks; c += 4 * 32) {
          uint4 v[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (c + i * 32 < chunks) v[i] = __ldg(reinterpret_cast<const uint4*>(from) + c + i * 32);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = c + i * 32;
            if (at >= chunks) continue;
            // Half at % 2 of group at / 2: of lanes 0 and 1, or 2 and 3, of a quad.
            const uint32_t lanes = to + at / 4 * 64 + at % 2 * 32 + at / 2 % 2 * 8;
            if constexpr (T::kPlain) {
              const uint32_t values = to + at / 4 * 64 + at / 2 % 2 * 8 + at % 2 * 4;
              store_shared_4(values, v[i].x);
              store_shared_4(values + 16, v[i].y);
              store_shared_4(values + 32, v[i].z);
              store_shared_4(values + 48, v[i].w);
            } else if constexpr (T::kFragments) {
              store_shared_8(lanes, v[i].x, v[i].y);
              store_shared_8(lanes + 16, v[i].z, v[i].w);
            } else {
              store_shared_8(lanes, __byte_perm(v[i].x, v[i].y, 0x5410), __byte_perm(v[i].x, v[i].y, 0x7632));
              store_shared_8(lanes + 16, __byte_perm(v[i].z, v[i].w, 0x5410),
                             __byte_perm(v[i].z, v[i].w, 0x7632));
            }
          }
        }
      }
      if constexpr (kNvfp4) {
        const float* b_outer = grouped ? p.experts[tile.expert].outer : p.b.outer;
        if (tid < tile.num_rows) outer[place + tid] = p.a_outer[a_row(tile, tid)] * *b_outer;
      }
      place += padded_rows(tile.num_rows);
    }
    __syncthreads();
    return index;
  };

  const uint32_t weight_lane = ring + group * T::kRowStride + quad * (Traits::kBitsPerValue / 2);
  const uint32_t token_lane = tokens + group * token_stride + quad * 16;
  uint32_t slot_out = 0;

  // One stage of BF16.
  [[maybe_unused]] const auto compute_plain = [&](auto& acc, uint32_t tokens_at) {
    constexpr int kTiles = sizeof(acc) / sizeof(acc[0]);
    constexpr int kGroups = T::kStep / 16;
    const uint32_t w_at = ring + slot_out + lane % 16 * T::kRowStride + lane / 16 * 16;
    uint32_t w[kGroups][4];
    uint4 t[kTiles][kGroups / 2];
#pragma unroll
    for (int ks = 0; ks < kGroups; ++ks) load_matrices(w[ks], w_at + ks * 32);
#pragma unroll
    for (int i = 0; i < kGroups / 2; ++i) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) t[j][i] = load_shared_16(tokens_at + j * 8 * token_stride + i * 64);
    }
#pragma unroll
    for (int ks = 0; ks < kGroups; ++ks) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const uint4 v = t[j][ks / 2];
        mma_16816(acc[j], w[ks], ks % 2 == 0 ? v.x : v.z, ks % 2 == 0 ? v.y : v.w);
      }
    }
  };

  // One stage of fragments: what a read of 16 bytes brings at a time.
  [[maybe_unused]] const auto compute_fragments = [&](auto& acc, auto large, uint32_t tokens_at,
                                                      const auto& scale_words) {
    constexpr int kTiles = sizeof(acc[0]) / sizeof(acc[0][0]);
    constexpr int kGroups = kNvfp4 ? 4 : 2;  // of 16 bytes
    const uint32_t w_at = ring + slot_out + lane * 16;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      uint4 t[kTiles][kGroups / 2];
#pragma unroll
      for (int i = 0; i < kGroups / 2; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          t[j][i] = load_shared_16(tokens_at + j * 8 * token_stride + (part * kGroups / 2 + i) * 64);
        }
      }
#pragma unroll
      for (int slab = 0; slab < SLABS; ++slab) {
        const uint4 words = load_shared_16(w_at + slab * T::kSlabBytes + part * 512);
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
        uint4 scales{};
        if constexpr (kNvfp4) {
          scales = load_shared_16(decoded + slab * T::kDecodedBytes + (part * 8 + group) * 16);
        }
        [[maybe_unused]] const uint32_t s[4] = {scales.x, scales.y, scales.z, scales.w};
        [[maybe_unused]] E8m0Factor factor[2];
        if constexpr (!kNvfp4) {
          constexpr bool kLarge = decltype(large)::value;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t e = (scale_words[slab][half] >> (part * 8)) & 0xffu;
            factor[half] =
                kLarge ? e8m0_factor(e) : E8m0Factor{e * 0x00800080u + 120u * 0x00800080u, 0x3f803f80u};
          }
        }
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          uint32_t w[4];
          if constexpr (kNvfp4) {
            decode_nvfp4_fragment(word[i], s[i], w);
          } else {
            decode_mxfp8_fragment<decltype(large)::value>(word[i * 2], factor[0], w[0], w[2]);
            decode_mxfp8_fragment<decltype(large)::value>(word[i * 2 + 1], factor[1], w[1], w[3]);
          }
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            const uint4 v = t[j][i / 2];
            mma_16816(acc[slab][j], w, i % 2 == 0 ? v.x : v.z, i % 2 == 0 ? v.y : v.w);
          }
        }
      }
    }
  };

  // One stage of rows: 8 groups of 16 at a time, all reads of them first.
  [[maybe_unused]] const auto compute_rows = [&](auto& acc, auto large, uint32_t tokens_at,
                                                 const uint32_t(&scale_words)[2]) {
    constexpr int kTiles = sizeof(acc) / sizeof(acc[0]);
    const uint32_t w_at = weight_lane + slot_out;
#pragma unroll
    for (int part = 0; part < T::kStep / 128; ++part) {
      [[maybe_unused]] uint32_t s[8];  // NVFP4: of rows group and group + 8
      if constexpr (kNvfp4) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
          const uint4 v = load_shared_16(decoded + ((part * 2 + i / 4) * 8 + group) * 16);
          s[i] = v.x;
          s[i + 1] = v.y;
          s[i + 2] = v.z;
          s[i + 3] = v.w;
        }
      }
      uint32_t codes[2][8];
      uint2 t[kTiles][8];
#pragma unroll
      for (int ks = 0; ks < 8; ++ks) {
        const uint32_t at = w_at + (part * 8 + ks) * (2 * Traits::kBitsPerValue);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t from = at + half * 8 * T::kRowStride;
          codes[half][ks] = kNvfp4 ? load_shared_2(from) : load_shared_4(from);
        }
        if (ks % 2 == 1) continue;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint4 v = load_shared_16(tokens_at + j * 8 * token_stride + (part * 8 + ks) * 32);
          t[j][ks] = {v.x, v.y};
          t[j][ks + 1] = {v.z, v.w};
        }
      }
      [[maybe_unused]] E8m0Factor factor[2];
#pragma unroll
      for (int ks = 0; ks < 8; ++ks) {
        uint32_t w[4];
        if constexpr (kNvfp4) {
          decode_nvfp4_even_odd<false>(codes[0][ks], s[ks], w[0], w[2]);
          decode_nvfp4_even_odd<true>(codes[1][ks], s[ks], w[1], w[3]);
        } else {
          constexpr bool kLarge = decltype(large)::value;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (ks % 2 == 0) {
              const uint32_t e = (scale_words[half] >> (ks / 2 * 8)) & 0xffu;
              factor[half] =
                  kLarge ? e8m0_factor(e) : E8m0Factor{e * 0x00800080u + 120u * 0x00800080u, 0x3f803f80u};
            }
            decode_mxfp8_even_odd<kLarge>(codes[half][ks], factor[half], w[half], w[half + 2]);
          }
        }
#pragma unroll
        for (int j = 0; j < kTiles; ++j) mma_16816(acc[j], w, t[j][ks].x, t[j][ks].y);
      }
    }
  };

  // acc[j][e]: row of B group (+8 for e >= 2), row of A 8j + 2 quad + e % 2.
  const auto store = [&](auto& acc, const GroupTile& tile, [[maybe_unused]] int place, int slab_row) {
    constexpr int kTiles = sizeof(acc) / sizeof(acc[0]);
    if constexpr (kNvfp4) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const float2 both = *reinterpret_cast<const float2*>(outer + place + j * 8 + quad * 2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          acc[j][e] = ((acc[j][e] * kNvfp4Fold) * p.inverse) * (e % 2 == 0 ? both.x : both.y);
        }
      }
    }
    if (p.c_bf16) {
      // Turned: a row of A and two neighbouring rows of B to a lane.
      uint16_t* to = static_cast<uint16_t*>(p.c) + (tile.row_begin + group) * p.ldc + slab_row + quad * 2;
#pragma unroll
      for (int j = 0; j < kTiles; ++j, to += 8 * p.ldc) {
        const uint32_t low = transpose_matrix(round_pair(acc[j][0], acc[j][1]));
        const uint32_t high = transpose_matrix(round_pair(acc[j][2], acc[j][3]));
        if (j * 8 + group < tile.num_rows) {
          *reinterpret_cast<uint32_t*>(to) = low;
          *reinterpret_cast<uint32_t*>(to + 8) = high;
        }
      }
    } else {
      float* to = static_cast<float*>(p.c) + (tile.row_begin + quad * 2) * p.ldc + slab_row + group;
#pragma unroll
      for (int j = 0; j < kTiles; ++j, to += 8 * p.ldc) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float* const c = to + e % 2 * p.ldc + e / 2 * 8;
          if (j * 8 + quad * 2 + e % 2 >= tile.num_rows) continue;
          *c = p.accumulate ? *c + acc[j][e] : acc[j][e];
        }
      }
    }
  };

  // `place`: of the tile's first row of A in shared memory.
  const auto run_slab = [&](auto active_tiles, const GroupTile& tile, int place, int slab_row) {
    constexpr int kTiles = decltype(active_tiles)::value;
    float acc[SLABS][kTiles][4] = {};
    uint32_t tokens_at = token_lane + place * token_stride;
    for (int step = 0; step < steps; ++step) {
      copy_wait<STAGES - 2>();
      __syncwarp();
      issue();
      [[maybe_unused]] uint32_t scale_words[SLABS][2] = {};
      bool large = false;
      if constexpr (!T::kPlain) {
        [[maybe_unused]] uint32_t above = 0;  // bytes above 134
#pragma unroll
        for (int i = 0; i < SLABS; ++i) {
          const uint32_t scales_at = ring + slot_out + i * T::kSlabBytes + T::kScaleOffset;
          if constexpr (kNvfp4) {
            uint2 codes;  // four groups of rows group and group + 8
            if constexpr (T::kFragments) {
              codes = load_shared_8(scales_at + (quad * 8 + group) * 8);
            } else {
              const uint32_t from = scales_at + group * T::kScaleBytes + quad * 4;
              const uint32_t low = load_shared_4(from);
              const uint32_t high = load_shared_4(from + 8 * T::kScaleBytes);
              codes = {__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632)};
            }
            const uint2 first = nvfp4_scale_pairs(codes.x);
            const uint2 last = nvfp4_scale_pairs(codes.y);
            store_shared_16(decoded + i * T::kDecodedBytes + (quad * 8 + group) * 16,
                            {first.x, first.y, last.x, last.y});
          } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int at = T::kFragments ? group * 2 + half : group + half * 8;
              scale_words[i][half] = load_shared_4(scales_at + at * T::kScaleBytes);
              above |= ((scale_words[i][half] & 0x7f7f7f7fu) + 0x79797979u) & scale_words[i][half];
            }
          }
        }
        if constexpr (kNvfp4) {
          __syncwarp();
        } else {
          large = __any_sync(0xffffffffu, (above & 0x80808080u) != 0);
        }
      }
      const auto compute = [&]([[maybe_unused]] auto above_seven) {
        if constexpr (T::kPlain) {
          compute_plain(acc[0], tokens_at);
        } else if constexpr (T::kFragments) {
          compute_fragments(acc, above_seven, tokens_at, scale_words);
        } else {
          compute_rows(acc[0], above_seven, tokens_at, scale_words[0]);
        }
      };
      if (F == WeightFormat::kMXFP8 && large) {
        compute(Constant<true>{});
      } else {
        compute(Constant<false>{});
      }
      tokens_at += T::kStep * 2;
      slot_out = slot_out + T::kStageBytes == STAGES * T::kStageBytes ? 0 : slot_out + T::kStageBytes;
    }
#pragma unroll
    for (int i = 0; i < SLABS; ++i) store(acc[i], tile, place, slab_row + i * T::kRows);
  };

  int slab = share.begin + warp;
  for (int at = share.begin; at < share.end;) {
    int index = at / slabs;
    const int next_index = bring_tokens(index);
    const int stop = min(share.end, next_index * slabs);
    GroupTile tile = tile_at(index);
    int place = 0;
    for (; slab < stop; slab += W) {
      while (slab >= (index + 1) * slabs) {
        place += padded_rows(tile.num_rows);
        tile = tile_at(++index);
      }
      const int row = (slab - index * slabs) * (SLABS * T::kRows);
      if (tile.num_rows <= 8) {
        run_slab(Constant<1>{}, tile, place, row);
      } else {
        run_slab(Constant<2>{}, tile, place, row);
      }
    }
    at = stop;
  }
}

}  // namespace accord::kernels::cuda
