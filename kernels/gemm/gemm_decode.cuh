#pragma once
// C[m,n] = sum over k of A[m,k] B[n,k] for MXFP8 and NVFP4 weights of many experts with 1 to 16 rows of A
// each: as fast as the weights can be read. Included by the files that instantiate it.
//
// A slab is 16 rows of B over the whole K. Blocks take equal shares of the slabs of all tiles, in order; the
// W warps of a block take them in turn. A warp brings its slabs, bytes as they lie, through a ring of its own
// of STAGES stages of 128 bytes a row, and reads ahead from one slab into the next, so nothing drains between
// slabs and no barrier is passed but where a block comes to another tile, whose rows of A (all of K) it then
// puts into shared memory. The slab is the 16-row operand of mma m16n8k16, decoded in registers.
//
// Inside a group of 16 values of K a lane takes four neighbours, 0 and 2 as one register, 1 and 3 as the
// other: codes then unpack two at a time without being moved. Rows of A lie in shared memory in that order.
#include "kernels/gemm/gemm_forward.cuh"

namespace accord::kernels::cuda {

template <WeightFormat F, int W, int STAGES>
struct DecodeLayout {
  using Traits = WeightTraits<F>;
  static constexpr int kThreads = 32 * W;
  static constexpr int kRows = 16;                            // of B and of A
  static constexpr int kStep = 1024 / Traits::kBitsPerValue;  // values of K of a stage
  static constexpr int kRowStride = 128 + 16;
  static constexpr int kScaleBytes = kStep / Traits::kBlock;  // of a row and stage
  static constexpr int kScaleOffset = kRows * kRowStride;
  static constexpr int kStageBytes = kScaleOffset + kRows * kScaleBytes;
  static constexpr int kDecodedStride = 80;  // NVFP4: sixteen scales, each as two bf16
  static constexpr int kDecodedBytes = F == WeightFormat::kNVFP4 ? kRows * kDecodedStride : 0;
  static constexpr int kWarpBytes = STAGES * kStageBytes + kDecodedBytes;
  static constexpr int kOuterBytes = kRows * 4;
  static_assert(kStageBytes % 16 == 0 && kWarpBytes % 16 == 0);
  __host__ __device__ static int token_stride(int k) { return k * 2 + 32; }
  static int shared_bytes(int k) { return W * kWarpBytes + kOuterBytes + kRows * token_stride(k); }
};

// Four E2M1 codes in 16 bits, times `scale` (of nvfp4_scale), as bf16x2 of codes 0 and 2 and of 1 and 3. A
// code at bit 0 of a half times 2^12 + 2^6 has its sign where bf16 has it, and its other bits at the end of
// the exponent and the start of the mantissa.
__device__ inline void decode_nvfp4_even_odd(uint32_t codes, uint32_t scale, uint32_t& even, uint32_t& odd) {
  const uint32_t x = __byte_perm(codes, 0, 0x4140);
  even = multiply_bf16x2(((x & 0x000f000fu) * 0x1040u) & 0x81c081c0u, scale);
  odd = multiply_bf16x2(((x & 0x00f000f0u) * 0x0104u) & 0x81c081c0u, scale);
}

// Four E4M3 block scales as nvfp4_scale gives them, each in both halves.
__device__ inline uint4 nvfp4_four_scales(uint32_t codes) {
  constexpr uint32_t kTwo119 = (119u + 127u) * 0x00800080u;
  const auto scaled = [](uint32_t x) { return multiply_bf16x2(multiply_bf16x2(x, kTwo119), kTwo119); };
  const uint32_t even = scaled((codes & 0x00ff00ffu) << 4);
  const uint32_t odd = scaled((codes & 0xff00ff00u) >> 4);
  return {__byte_perm(even, 0, 0x1010), __byte_perm(odd, 0, 0x1010), __byte_perm(even, 0, 0x3232),
          __byte_perm(odd, 0, 0x3232)};
}

// Four E4M3 codes times a power of two, as bf16x2 of codes 0 and 2 and of 1 and 3.
template <bool LARGE>
__device__ inline void decode_mxfp8_even_odd(uint32_t codes, const E8m0Factor& f, uint32_t& even,
                                             uint32_t& odd) {
  even = multiply_bf16x2(((codes << 8) & 0x80008000u) | ((codes << 4) & 0x07f007f0u), f.first);
  odd = multiply_bf16x2((codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u), f.first);
  if constexpr (LARGE) {
    even = multiply_bf16x2(even, f.second);
    odd = multiply_bf16x2(odd, f.second);
  }
}

template <WeightFormat F, int W, int STAGES>
__global__ void __launch_bounds__(32 * W, (STAGES == 2 ? 24 : 16) / W)
    decode_kernel(const ForwardParams p, int grain) {
  using T = DecodeLayout<F, W, STAGES>;
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

  const int slabs = p.n / T::kRows;  // of a tile
  const bool grouped = p.tiles != nullptr;
  // In pieces of `grain`, which divides the slabs of a tile.
  const int64_t all = static_cast<int64_t>(grouped ? *p.num_tiles : 1) * (slabs / grain);
  const int begin = static_cast<int>(all * blockIdx.x / gridDim.x) * grain;
  const int end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x) * grain;
  if (begin == end) return;
  const int steps = p.k / T::kStep;
  const int64_t row_bytes = static_cast<int64_t>(p.k) * Traits::kBitsPerValue / 8;
  const int row_scales = p.k / Traits::kBlock;

  // ---- reading ahead: the next stage to bring is step next_step of slab next_slab
  int next_slab = begin + warp;
  int next_step = 0;
  uint32_t slot_in = 0;
  const unsigned char* rows_from = nullptr;
  const uint8_t* scales_from = nullptr;
  const auto open_slab = [&] {
    const int tile = next_slab / slabs;
    const int row = (next_slab - tile * slabs) * T::kRows;
    const GemmWeight weight = grouped ? p.experts[p.tiles[tile].expert] : p.b;
    rows_from = static_cast<const unsigned char*>(weight.data) + (row + lane / 8) * row_bytes + lane % 8 * 16;
    scales_from = weight.scales + static_cast<int64_t>(row + lane % 16) * row_scales;
  };
  const auto issue = [&] {
    if (next_slab < end) {
      const uint32_t to = ring + slot_in;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        copy_async<16>(to + (lane / 8 + 4 * i) * T::kRowStride + lane % 8 * 16, rows_from + 4 * i * row_bytes,
                       true);
      }
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
      rows_from += 128;
      scales_from += T::kScaleBytes;
      if (++next_step == steps) {
        next_step = 0;
        next_slab += W;
        if (next_slab < end) open_slab();
      }
    }
    slot_in = slot_in + T::kStageBytes == STAGES * T::kStageBytes ? 0 : slot_in + T::kStageBytes;
    copy_commit();
  };
  if (next_slab < end) open_slab();
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) issue();

  const auto a_row = [&](const GroupTile& tile, int r) -> int64_t {
    return p.gather != nullptr ? p.gather[tile.row_begin + r] : tile.row_begin + r;
  };
  const auto bring_tokens = [&](const GroupTile& tile) {
    __syncthreads();  // the rows before are no longer read
    const int chunks = p.k / 8;
    for (int r = warp; r < tile.num_rows; r += W) {
      const uint16_t* from = p.a + a_row(tile, r) * p.lda;
      const uint32_t to = tokens + r * token_stride;
      for (int c = lane; c < chunks; c += 4 * 32) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (c + i * 32 < chunks) v[i] = __ldg(reinterpret_cast<const uint4*>(from) + c + i * 32);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (c + i * 32 < chunks) {
            store_shared_16(to + (c + i * 32) * 16,
                            {__byte_perm(v[i].x, v[i].y, 0x5410), __byte_perm(v[i].x, v[i].y, 0x7632),
                             __byte_perm(v[i].z, v[i].w, 0x5410), __byte_perm(v[i].z, v[i].w, 0x7632)});
          }
        }
      }
    }
    if constexpr (kNvfp4) {
      const float* b_outer = grouped ? p.experts[tile.expert].outer : p.b.outer;
      if (tid < tile.num_rows) outer[tid] = p.a_outer[a_row(tile, tid)] * *b_outer;
    }
    __syncthreads();
  };

  const uint32_t weight_lane = ring + group * T::kRowStride + quad * (Traits::kBitsPerValue / 2);
  const uint32_t token_lane = tokens + group * token_stride + quad * 8;
  uint32_t slot_out = 0;

  // One stage: 8 groups of 16 at a time, all reads of them first.
  const auto compute = [&](auto& acc, auto large, uint32_t tokens_at, const uint32_t(&scale_words)[2]) {
    constexpr int kTiles = sizeof(acc) / sizeof(acc[0]);
    const uint32_t w_at = weight_lane + slot_out;
#pragma unroll
    for (int part = 0; part < T::kStep / 128; ++part) {
      uint32_t s[2][8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kNvfp4) {
#pragma unroll
          for (int i = 0; i < 8; i += 4) {
            const uint4 v =
                load_shared_16(decoded + (group + half * 8) * T::kDecodedStride + part * 32 + i * 4);
            s[half][i] = v.x;
            s[half][i + 1] = v.y;
            s[half][i + 2] = v.z;
            s[half][i + 3] = v.w;
          }
        } else {
          s[half][0] = scale_words[half];
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
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          t[j][ks] = load_shared_8(tokens_at + j * 8 * token_stride + (part * 8 + ks) * 32);
        }
      }
      [[maybe_unused]] E8m0Factor factor[2];
#pragma unroll
      for (int ks = 0; ks < 8; ++ks) {
        uint32_t w[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (kNvfp4) {
            decode_nvfp4_even_odd(codes[half][ks], s[half][ks], w[half], w[half + 2]);
          } else {
            constexpr bool kLarge = decltype(large)::value;
            if (ks % 2 == 0) {
              const uint32_t e = (s[half][0] >> (ks / 2 * 8)) & 0xffu;
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

  const auto run_slab = [&](auto active_tiles, const GroupTile& tile, int slab_row) {
    constexpr int kTiles = decltype(active_tiles)::value;
    float acc[kTiles][4] = {};
    uint32_t tokens_at = token_lane;
    for (int step = 0; step < steps; ++step) {
      copy_wait<STAGES - 2>();
      __syncwarp();
      issue();
      uint32_t scale_words[2] = {};
      bool large = false;
      if constexpr (kNvfp4) {
        const uint2 raw = load_shared_8(ring + slot_out + T::kScaleOffset + lane * 8);
        const uint32_t to = decoded + lane / 2 * T::kDecodedStride + lane % 2 * 32;
        store_shared_16(to, nvfp4_four_scales(raw.x));
        store_shared_16(to + 16, nvfp4_four_scales(raw.y));
        __syncwarp();
      } else {
        uint32_t above = 0;  // bytes above 134
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          scale_words[half] =
              load_shared_4(ring + slot_out + T::kScaleOffset + (group + half * 8) * T::kScaleBytes);
          above |= ((scale_words[half] & 0x7f7f7f7fu) + 0x79797979u) & scale_words[half];
        }
        large = __any_sync(0xffffffffu, (above & 0x80808080u) != 0);
      }
      if (F == WeightFormat::kMXFP8 && large) {
        compute(acc, Constant<true>{}, tokens_at, scale_words);
      } else {
        compute(acc, Constant<false>{}, tokens_at, scale_words);
      }
      tokens_at += T::kStep * 2;
      slot_out = slot_out + T::kStageBytes == STAGES * T::kStageBytes ? 0 : slot_out + T::kStageBytes;
    }
    // acc[j][e]: row of B group (+8 for e >= 2), row of A 8j + 2 quad + e % 2.
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int r = j * 8 + quad * 2 + e;
        if (r >= tile.num_rows) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float x = acc[j][half * 2 + e];
          if constexpr (kNvfp4) x = ((x * kNvfp4Fold) * p.inverse) * outer[r];
          const int64_t at = (tile.row_begin + r) * p.ldc + slab_row + half * 8 + group;
          if (p.c_bf16) {
            static_cast<uint16_t*>(p.c)[at] = static_cast<uint16_t>(bf16_bits(x));
          } else {
            float* to = static_cast<float*>(p.c) + at;
            *to = p.accumulate ? *to + x : x;
          }
        }
      }
    }
  };

  int slab = begin + warp;
  for (int at = begin; at < end;) {
    const int tile_index = at / slabs;
    const int first = tile_index * slabs;
    const int stop = min(end, first + slabs);
    const GroupTile tile = grouped ? p.tiles[tile_index] : GroupTile{0, 0, p.m};
    bring_tokens(tile);
    for (; slab < stop; slab += W) {
      if (tile.num_rows <= 8) {
        run_slab(Constant<1>{}, tile, (slab - first) * T::kRows);
      } else {
        run_slab(Constant<2>{}, tile, (slab - first) * T::kRows);
      }
    }
    at = stop;
  }
}

// `even`: shares of whole rounds of a block's warps, if they fit a tile: no warp then waits for others where
// the block comes to another tile. Worth it where a block has several rounds.
template <WeightFormat F, int W, int STAGES>
void launch_decode_as(const ForwardParams& p, int blocks, bool even, StreamHandle stream) {
  const auto kernel = decode_kernel<F, W, STAGES>;
  const int bytes = DecodeLayout<F, W, STAGES>::shared_bytes(p.k);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<static_cast<unsigned>(blocks), 32 * W, bytes, stream>>>(p, even && p.n / 16 % W == 0 ? W : 1);
  check_launch("gemm_forward");
}

// True: it took the product, of at most 16 rows or grouped by 16: N % 16 == 0, K a multiple of a stage, and
// rows of A fit.
template <WeightFormat F>
bool launch_decode(const ForwardParams& p, int32_t row_tiles, StreamHandle stream) {
  constexpr int kShared = 227 * 1024;
  constexpr bool kNvfp4 = F == WeightFormat::kNVFP4;
  constexpr int kFew = kNvfp4 ? 3 : 4;
  const int64_t slabs = int64_t{row_tiles} * (p.n / 16);
  if (p.n % 16 != 0 || p.k % DecodeLayout<F, 4, 8>::kStep != 0 || slabs >= (int64_t{1} << 31)) return false;
  // Longer rows of MXFP8 are read faster by blocks of fewer warps (gemm_few_rows.cuh).
  if (!kNvfp4 && p.k > 1024) return false;
  const int blocks = num_multiprocessors();
  const bool rounds = slabs >= int64_t{5} * 16 * blocks;
  // Slabs in flight times stages: enough bytes on their way however few slabs there are.
  if (slabs <= int64_t{4} * blocks && DecodeLayout<F, 4, 8>::shared_bytes(p.k) <= kShared) {
    launch_decode_as<F, 4, 8>(p, blocks, false, stream);
  } else if (slabs <= int64_t{8} * blocks && DecodeLayout<F, 8, 6>::shared_bytes(p.k) <= kShared) {
    launch_decode_as<F, 8, 6>(p, blocks, false, stream);
  } else if (!kNvfp4 && 3 * (DecodeLayout<F, 8, 2>::shared_bytes(p.k) + 1024) <= kShared) {
    launch_decode_as<F, 8, 2>(p, 3 * blocks, true, stream);
  } else if (2 * (DecodeLayout<F, 8, kFew>::shared_bytes(p.k) + 1024) <= kShared) {
    // Two blocks of a multiprocessor wait for each other's rows of A less than one of all its warps.
    launch_decode_as<F, 8, kFew>(p, 2 * blocks, rounds, stream);
  } else if (DecodeLayout<F, 16, kFew>::shared_bytes(p.k) <= kShared) {
    launch_decode_as<F, 16, kFew>(p, blocks, rounds, stream);
  } else {
    return false;
  }
  return true;
}

}  // namespace accord::kernels::cuda
