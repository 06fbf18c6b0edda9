#pragma once
// C[m,n] = sum over k of A[m,k] B[n,k] for few rows of A per tile (1 to 64): bound by reading B. Included by
// the files that instantiate it.
//
// The weights are the 16-row operand of mma m16n8k16, decoded in registers, the rows of A its 8-column
// operand. A warp owns 16 rows of B and all NT*8 rows of A of the tile. Rows travel as they lie through a
// ring of STAGES shared-memory stages of BK values; block scales of up to kScaleReach values of K are brought
// once, decoded. Zeros past the edges of K change no bit; rows past the edges are copies of valid ones that
// nobody stores.
#include "kernels/cuda/overlap.cuh"
#include "kernels/gemm/gemm_forward.cuh"
#include "kernels/gemm/tile_shares.cuh"

namespace accord::kernels::cuda {

constexpr int kScaleReach = 4096;

template <WeightFormat F, int NT, int W, int BK, int STAGES, int CHUNK>
struct FewRows {
  using Traits = WeightTraits<F>;
  static constexpr bool kPlain = F == WeightFormat::kBF16;
  static constexpr int kThreads = 32 * W;
  static constexpr int kRows = 16 * W;  // of B
  static constexpr int kTokens = 8 * NT;
  // BF16: both by ldmatrix; else tokens by 8-byte reads of a quad's 32 bytes.
  static constexpr int kTokenStride = BK * 2 + (kPlain ? 16 : 32);
  static constexpr int kRowBytes = BK * Traits::kBitsPerValue / 8;
  static constexpr int kRowStride = kRowBytes + 16;
  static constexpr int kTokenBytes = kTokens * kTokenStride;
  static constexpr int kStageBytes = kTokenBytes + kRows * kRowStride;
  static constexpr int kTokenChunks = BK / 8;
  static constexpr int kTokensAtOnce = kThreads / kTokenChunks;
  static constexpr int kTokenCopies = (kTokens + kTokensAtOnce - 1) / kTokensAtOnce;
  static constexpr int kChunks = kRowBytes / CHUNK;
  static constexpr int kRowsAtOnce = kThreads / kChunks;
  static constexpr int kRowCopies = kRows / kRowsAtOnce;
  static_assert(kThreads % kTokenChunks == 0 && kThreads % kChunks == 0 && kRows % kRowsAtOnce == 0);
  static constexpr int kScaleSize = kStoredScale<F>;
  static constexpr int kScalesPerStage = kPlain ? 0 : BK / (kPlain ? 1 : Traits::kBlock);

  static int scale_stride(int k) {  // bytes of a row: 16-byte aligned, rows 16 bytes apart in the banks
    if (kPlain) return 0;
    const int reach = (k < kScaleReach ? k : kScaleReach) + BK - 1;
    return (reach / BK * kScalesPerStage * kScaleSize + 127) / 128 * 128 + 16;
  }
  static int shared_bytes(int k) { return STAGES * kStageBytes + kRows * scale_stride(k); }
};

template <WeightFormat F, int NT, int W, int BK, int STAGES, int CHUNK>
__global__ void __launch_bounds__(32 * W, 1) few_rows_kernel(const ForwardParams p, int scale_stride) {
  using T = FewRows<F, NT, W, BK, STAGES, CHUNK>;
  using Traits = WeightTraits<F>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;

  int row_begin = blockIdx.y * T::kTokens;
  int num_rows = min(p.m - row_begin, T::kTokens);
  GemmWeight weight = p.b;
  const uint16_t* a = p.a;
  void* c = p.c;
  if (!p.b_at_rest) gpu::wait_for_previous();
  if (p.tiles != nullptr) {
    GroupTile tile{};
    if (static_cast<int>(blockIdx.y) < __ldcg(p.num_tiles)) tile = tile_at_rest(p.tiles + blockIdx.y);
    row_begin = tile.row_begin + blockIdx.z * T::kTokens;  // a tile may hold several of ours
    num_rows = min(tile.num_rows - static_cast<int>(blockIdx.z) * T::kTokens, T::kTokens);
    if (num_rows <= 0) {
      if (p.b_at_rest) gpu::wait_for_previous();
      return;
    }
    weight = weight_at_rest(p.experts + tile.expert);
  } else {
    a += blockIdx.z * p.a_batch;
    weight.data = static_cast<const uint16_t*>(weight.data) + blockIdx.z * p.b_batch;
    c = p.c_bf16 ? static_cast<void*>(static_cast<uint16_t*>(c) + blockIdx.z * p.c_batch)
                 : static_cast<void*>(static_cast<float*>(c) + blockIdx.z * p.c_batch);
  }
  const int col_begin = blockIdx.x * T::kRows;
  const uint32_t base = shared_address(shared);
  const auto a_row = [&](int r) -> int64_t {
    return p.gather != nullptr ? p.gather[row_begin + r] : row_begin + r;
  };

  // What this thread copies: the same chunk of every row it takes.
  const int row_chunk = tid % T::kChunks;
  const int64_t row_bytes = static_cast<int64_t>(p.k) * Traits::kBitsPerValue / 8;
  const unsigned char* row_from[T::kRowCopies];
#pragma unroll
  for (int i = 0; i < T::kRowCopies; ++i) {
    const int r = min(col_begin + tid / T::kChunks + i * T::kRowsAtOnce, p.n - 1);
    row_from[i] = static_cast<const unsigned char*>(weight.data) + r * row_bytes + row_chunk * CHUNK;
  }
  const uint32_t row_to = base + T::kTokenBytes + tid / T::kChunks * T::kRowStride + row_chunk * CHUNK;
  const auto issue_rows = [&](int stage, int k0) {
    const int byte0 = k0 / 8 * Traits::kBitsPerValue;
    const bool row_k = byte0 + row_chunk * CHUNK < row_bytes;
    const int at = row_k ? byte0 : 0;
#pragma unroll
    for (int i = 0; i < T::kRowCopies; ++i) {
      copy_async<CHUNK>(row_to + stage * T::kStageBytes + i * T::kRowsAtOnce * T::kRowStride,
                        row_from[i] + at, row_k);
    }
  };
  const int steps = (p.k + BK - 1) / BK;
  if (p.b_at_rest) {
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
      if (s < steps) issue_rows(s, s * BK);
    }
    gpu::wait_for_previous();
  }
  gpu::allow_next();

  const int token_chunk = tid % T::kTokenChunks;
  const uint16_t* token_from[T::kTokenCopies];
  bool token_valid[T::kTokenCopies];
#pragma unroll
  for (int i = 0; i < T::kTokenCopies; ++i) {
    const int r = tid / T::kTokenChunks + i * T::kTokensAtOnce;
    token_valid[i] = r < num_rows;
    token_from[i] = a + a_row(token_valid[i] ? r : 0) * p.lda + token_chunk * 8;
  }
  const uint32_t token_to = base + tid / T::kTokenChunks * T::kTokenStride + token_chunk * 16;
  const auto issue_tokens = [&](int stage, int k0) {
    const bool token_k = k0 + token_chunk * 8 < p.k;
#pragma unroll
    for (int i = 0; i < T::kTokenCopies; ++i) {
      if (T::kTokens % T::kTokensAtOnce == 0 || tid / T::kTokenChunks + i * T::kTokensAtOnce < T::kTokens) {
        const bool valid = token_k && token_valid[i];
        copy_async<16>(token_to + stage * T::kStageBytes + i * T::kTokensAtOnce * T::kTokenStride,
                       valid ? token_from[i] + k0 : token_from[i], valid);
      }
    }
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) {
      issue_tokens(s, s * BK);
      if (!p.b_at_rest) issue_rows(s, s * BK);
    }
    copy_commit();
  }

  unsigned char* const scales = shared + STAGES * T::kStageBytes;
  float acc[NT][4] = {};
  // ldmatrix lanes (BF16) and plain reads (else).
  const uint32_t weight_lane =
      base + T::kTokenBytes +
      (T::kPlain ? (warp * 16 + lane % 16) * T::kRowStride + lane / 16 * 16
                 : (warp * 16 + group) * T::kRowStride + quad * (Traits::kBitsPerValue / 2));
  const uint32_t token_lane =
      base + (T::kPlain ? lane % 8 * T::kTokenStride + lane / 8 * 16 : group * T::kTokenStride + quad * 8);
  const unsigned char* const scale_lane = scales + (warp * 16 + group) * scale_stride;

  const auto compute = [&](auto active_tiles, auto large, int stage, int k0) {
    constexpr int kActive = decltype(active_tiles)::value;
    [[maybe_unused]] constexpr bool kLarge = decltype(large)::value;
    const uint32_t w_at = weight_lane + stage * T::kStageBytes;
    const uint32_t t_at = token_lane + stage * T::kStageBytes;
    if constexpr (T::kPlain) {
      uint32_t w[BK / 16][4];
#pragma unroll
      for (int ks = 0; ks < BK / 16; ++ks) load_matrices(w[ks], w_at + ks * 32);
#pragma unroll
      for (int ks = 0; ks < BK / 16; ks += 2) {
        uint32_t t[kActive][4];
#pragma unroll
        for (int j = 0; j < kActive; ++j) load_matrices(t[j], t_at + j * 8 * T::kTokenStride + ks * 32);
#pragma unroll
        for (int j = 0; j < kActive; ++j) mma_16816(acc[j], w[ks], t[j][0], t[j][1]);
#pragma unroll
        for (int j = 0; j < kActive; ++j) mma_16816(acc[j], w[ks + 1], t[j][2], t[j][3]);
      }
    } else {
      // The stage's scales of rows `group` and `group + 8`.
      constexpr int kWords = T::kScalesPerStage * T::kScaleSize / 4;
      uint32_t s[2][kWords];
      const int at = k0 % kScaleReach / BK * (kWords * 4);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned char* from = scale_lane + half * 8 * scale_stride + at;
#pragma unroll
        for (int i = 0; i < kWords; i += kWords % 4 == 0 ? 4 : 1) {
          if constexpr (kWords % 4 == 0) {
            const uint4 v = *reinterpret_cast<const uint4*>(from + i * 4);
            s[half][i] = v.x;
            s[half][i + 1] = v.y;
            s[half][i + 2] = v.z;
            s[half][i + 3] = v.w;
          } else {
            s[half][i] = *reinterpret_cast<const uint32_t*>(from + i * 4);
          }
        }
      }
      // All reads first: their latency is paid once a stage.
      constexpr int kSteps = BK / 16;
      constexpr bool kHoldTokens = kActive <= 2;
      uint32_t codes[2][kSteps];
      uint2 tokens[kHoldTokens ? kActive : 1][kSteps];
#pragma unroll
      for (int ks = 0; ks < kSteps; ++ks) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t from = w_at + half * 8 * T::kRowStride + ks * (2 * Traits::kBitsPerValue);
          codes[half][ks] = F == WeightFormat::kMXFP8 ? load_shared_4(from) : load_shared_2(from);
        }
        if constexpr (kHoldTokens) {
#pragma unroll
          for (int j = 0; j < kActive; ++j) {
            tokens[j][ks] = load_shared_8(t_at + j * 8 * T::kTokenStride + ks * 32);
          }
        }
      }
      [[maybe_unused]] E8m0Factor factor[2];
#pragma unroll
      for (int ks = 0; ks < kSteps; ++ks) {
        uint32_t w[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (F == WeightFormat::kMXFP8) {
            if (ks % 2 == 0) {
              const int index = ks / 2;
              const uint32_t e = (s[half][index / 4] >> (index % 4 * 8)) & 0xffu;
              factor[half] = kLarge ? e8m0_factor(e) : E8m0Factor{(e + 120u) * 0x00800080u, 0x3f803f80u};
            }
            decode_mxfp8<kLarge>(codes[half][ks], factor[half], w[half], w[half + 2]);
          } else {
            decode_nvfp4(codes[half][ks], __byte_perm(s[half][ks / 2], 0, ks % 2 == 0 ? 0x1010 : 0x3232),
                         w[half], w[half + 2]);
          }
        }
#pragma unroll
        for (int j = 0; j < kActive; ++j) {
          uint2 t;
          if constexpr (kHoldTokens) {
            t = tokens[j][ks];
          } else {
            t = load_shared_8(t_at + j * 8 * T::kTokenStride + ks * 32);
          }
          mma_16816(acc[j], w, t.x, t.y);
        }
      }
    }
  };

  const auto run = [&](auto active_tiles) {
    bool large = false;
    for (int it = 0; it < steps; ++it) {
      if (!T::kPlain && it % (kScaleReach / BK) == 0) {
        if (it != 0) __syncthreads();  // the previous scales are no longer read
        large = load_weight_scales<F, T::kRows, T::kThreads>(weight, p.n, p.k, col_begin, it * BK,
                                                             kScaleReach, scales, scale_stride, tid);
        if (F == WeightFormat::kMXFP8) large = __syncthreads_or(large);
      }
      copy_wait<STAGES - 2>();
      __syncthreads();
      const int next = it + STAGES - 1;
      if (next < steps) {
        issue_tokens(next % STAGES, next * BK);
        issue_rows(next % STAGES, next * BK);
      }
      copy_commit();
      if (F == WeightFormat::kMXFP8 && large) {
        compute(active_tiles, Constant<true>{}, it % STAGES, it * BK);
      } else {
        compute(active_tiles, Constant<false>{}, it % STAGES, it * BK);
      }
    }
  };
  if (NT == 2 && num_rows <= 8) {
    run(Constant<1>{});
  } else {
    run(Constant<NT>{});
  }

  // acc[j][e]: row of B group (+8 for e >= 2), row of A 8j + 2 quad + e % 2.
  float b_outer = 1.0F;
  if constexpr (F == WeightFormat::kNVFP4) b_outer = *weight.outer;
#pragma unroll
  for (int j = 0; j < NT; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int r = j * 8 + quad * 2 + e;
      if (r >= num_rows) continue;
      float outer = 1.0F;
      if constexpr (F == WeightFormat::kNVFP4) outer = p.a_outer[a_row(r)] * b_outer;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = col_begin + warp * 16 + half * 8 + group;
        if (col >= p.n) continue;
        float x = acc[j][half * 2 + e];
        if constexpr (F == WeightFormat::kNVFP4) x = ((x * kNvfp4Fold) * p.inverse) * outer;
        const int64_t at = (row_begin + r) * p.ldc + col;
        if (p.c_bf16) {
          static_cast<uint16_t*>(c)[at] = static_cast<uint16_t>(bf16_bits(x));
        } else {
          float* to = static_cast<float*>(c) + at;
          *to = p.accumulate ? *to + x : x;
        }
      }
    }
  }
}

// `sub_tiles`: tiles of ours in a tile of the group list (grouped), or products of a batch.
template <WeightFormat F, int NT, int W, int BK, int STAGES, int CHUNK = 16>
void launch_few_rows(const ForwardParams& p, int32_t row_tiles, int32_t depth, StreamHandle stream) {
  using T = FewRows<F, NT, W, BK, STAGES, CHUNK>;
  const auto kernel = few_rows_kernel<F, NT, W, BK, STAGES, CHUNK>;
  const int bytes = T::shared_bytes(p.k);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(static_cast<unsigned>((p.n + T::kRows - 1) / T::kRows), static_cast<unsigned>(row_tiles),
                  static_cast<unsigned>(depth));
  gpu::launch_overlapped(kernel, grid, T::kThreads, bytes, stream, p, T::scale_stride(p.k));
  check_launch("gemm_forward");
}

}  // namespace accord::kernels::cuda
