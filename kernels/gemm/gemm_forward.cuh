#pragma once
// C[m,n] = sum over k of A[m,k] B[n,k]: one kernel for every format, tile and grouping (gemm_cuda.hpp).
// Included by the files that instantiate it.
//
// A block owns BM x BN outputs, a warp MT*16 x NT*8 of them. Rows of A (bf16) and of B (bytes as they lie)
// travel through a ring of STAGES shared-memory stages of BK values; B is decoded in registers. Rows, columns
// and elements past the edges are zeros and change no bit.
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/product_tile.cuh"
#include "kernels/gemm/weight_fragment.cuh"

namespace accord::kernels::cuda {

struct ForwardParams {
  const uint16_t* a;
  int64_t lda;
  const float* a_outer;
  GemmWeight b;
  void* c;
  int64_t ldc;
  int32_t m, n, k;
  float inverse;  // NVFP4: fl(1/(36 R_a R_b))
  bool c_bf16, accumulate;
  bool fragments;  // GemmForward's
  const GroupTile* tiles;
  const int32_t* num_tiles;
  const GemmWeight* experts;
  const int32_t* gather;
  int64_t a_batch, b_batch, c_batch;
  bool b_at_rest;  // GemmForward's, and that of the groups
  // A second product of the same rows, list, n and ldc, for the kernel of gemm_decode.cuh alone; null: none.
  const GemmWeight* experts_2;
  void* c_2;
};

template <WeightFormat F, int MT, int NT, int WM, int WN, int BK, int STAGES>
struct ForwardTile {
  static constexpr int kThreads = 32 * WM * WN;
  static constexpr int kBM = 16 * MT * WM;
  static constexpr int kBN = 8 * NT * WN;
  static constexpr int kAStride = BK * 2 + 32;  // see WeightTraits<kBF16>::kPad
  static constexpr int kABytes = kBM * kAStride;
  using BStage = WeightStage<F, kBN, BK>;
  static constexpr int kStageBytes = kABytes + BStage::kBytes;
  static constexpr int kSharedBytes = STAGES * kStageBytes;
  static constexpr int kAChunks = BK / 8;  // 16-byte chunks of a row
  static_assert(kThreads % kAChunks == 0 && BK % 64 == 0,
                "a thread stages the same chunk of every row it takes");
  static constexpr int kARowsAtOnce = kThreads / kAChunks;
  static constexpr int kARowsPerThread = (kBM + kARowsAtOnce - 1) / kARowsAtOnce;
};

template <WeightFormat F, int MT, int NT, int WM, int WN, int BK, int STAGES>
__global__ void __launch_bounds__(32 * WM * WN) forward_kernel(const ForwardParams params) {
  using Tile = ForwardTile<F, MT, NT, WM, WN, BK, STAGES>;
  using BStage = typename Tile::BStage;
  using Traits = WeightTraits<F>;
  extern __shared__ __align__(128) unsigned char shared[];
  ForwardParams p = params;

  // Which rows, and whose weight.
  int row_begin = blockIdx.y * Tile::kBM;
  int num_rows = min(p.m - row_begin, Tile::kBM);
  GemmWeight weight = p.b;
  if (p.tiles != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *p.num_tiles) return;
    const GroupTile tile = p.tiles[blockIdx.y];
    row_begin = tile.row_begin;
    num_rows = tile.num_rows;
    weight = p.experts[tile.expert];
  } else {
    auto* b = static_cast<const uint16_t*>(weight.data);
    move_to_batch(p, b);
    weight.data = b;
  }
  const int col_begin = blockIdx.x * Tile::kBN;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const int warp_row = (warp / WN) * MT * 16;
  const int warp_col = (warp % WN) * NT * 8;
  const uint32_t base = shared_address(shared);

  // The rows of A that this thread copies.
  const int a_chunk = tid % Tile::kAChunks;
  const uint16_t* a_rows[Tile::kARowsPerThread];
#pragma unroll
  for (int i = 0; i < Tile::kARowsPerThread; ++i) {
    const int r = tid / Tile::kAChunks + i * Tile::kARowsAtOnce;
    a_rows[i] = nullptr;
    if (r < num_rows) {
      const int64_t row = p.gather != nullptr ? p.gather[row_begin + r] : row_begin + r;
      a_rows[i] = p.a + row * p.lda + a_chunk * 8;
    }
  }

  const int64_t row_bytes = static_cast<int64_t>(p.k) * Traits::kBitsPerValue / 8;
  const auto* b_data = static_cast<const unsigned char*>(weight.data);
  const int64_t scales_per_row = Traits::kBlock == 0 ? 0 : p.k / (Traits::kBlock == 0 ? 1 : Traits::kBlock);
  const auto scale_base = reinterpret_cast<uintptr_t>(weight.scales);
  const uintptr_t scale_end = scale_base + static_cast<uintptr_t>(scales_per_row) * p.n;

  const auto issue = [&](int stage, int k0) {
    const uint32_t to = base + stage * Tile::kStageBytes;
#pragma unroll
    for (int i = 0; i < Tile::kARowsPerThread; ++i) {
      const int r = tid / Tile::kAChunks + i * Tile::kARowsAtOnce;
      if (Tile::kBM % Tile::kARowsAtOnce == 0 || r < Tile::kBM) {
        const bool valid = a_rows[i] != nullptr && k0 + a_chunk * 8 < p.k;
        copy_async<16>(to + r * Tile::kAStride + a_chunk * 16, valid ? a_rows[i] + k0 : p.a, valid);
      }
    }
    const uint32_t b_to = to + Tile::kABytes;
    const int64_t byte0 = static_cast<int64_t>(k0) * Traits::kBitsPerValue / 8;
    // 16-byte rows, but for NVFP4 rows of an odd number of 16-value groups.
    if (F != WeightFormat::kNVFP4 || p.k % 32 == 0) {
      constexpr int kChunks = BStage::kRowBytes / 16;
      for (int i = tid; i < Tile::kBN * kChunks; i += Tile::kThreads) {
        const int r = i / kChunks;
        const int c = i % kChunks;
        const bool valid = col_begin + r < p.n && byte0 + c * 16 < row_bytes;
        copy_async<16>(b_to + r * BStage::kRowStride + c * 16,
                       valid ? b_data + (col_begin + r) * row_bytes + byte0 + c * 16 : b_data, valid);
      }
    } else {
      constexpr int kChunks = BStage::kRowBytes / 8;
      for (int i = tid; i < Tile::kBN * kChunks; i += Tile::kThreads) {
        const int r = i / kChunks;
        const int c = i % kChunks;
        const bool valid = col_begin + r < p.n && byte0 + c * 8 < row_bytes;
        copy_async<8>(b_to + r * BStage::kRowStride + c * 8,
                      valid ? b_data + (col_begin + r) * row_bytes + byte0 + c * 8 : b_data, valid);
      }
    }
    if constexpr (Traits::kBlock != 0) {
      for (int i = tid; i < Tile::kBN * BStage::kScaleWords; i += Tile::kThreads) {
        const int r = i / BStage::kScaleWords;
        const int w = i % BStage::kScaleWords;
        const uintptr_t first = scale_base + (col_begin + r) * scales_per_row + k0 / Traits::kBlock;
        const uintptr_t word = (first & ~uintptr_t{3}) + w * 4;
        const bool valid = col_begin + r < p.n && word < scale_end;
        copy_async<4>(b_to + BStage::kScaleOffset + i * 4,
                      reinterpret_cast<const void*>(valid ? word : (scale_base & ~uintptr_t{3})), valid);
      }
    }
  };

  float acc[MT][NT][4] = {};
  const int steps = (p.k + BK - 1) / BK;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) issue(s, s * BK);
    copy_commit();
  }

  const auto compute = [&](int stage, int k0) {
    const uint32_t a_at = base + stage * Tile::kStageBytes + (warp_row + group) * Tile::kAStride + quad * 8;
    const uint32_t b_stage = base + stage * Tile::kStageBytes + Tile::kABytes;
    const uint32_t b_at =
        b_stage + (warp_col + group) * BStage::kRowStride + quad * (Traits::kBitsPerValue / 2);
    uint32_t scales[NT][BStage::kScaleWords == 0 ? 1 : BStage::kScaleWords - 1];
    if constexpr (Traits::kBlock != 0) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const int r = warp_col + j * 8 + group;
        const uint32_t at = b_stage + BStage::kScaleOffset + r * BStage::kScaleWords * 4;
        const auto first =
            static_cast<uint32_t>(scale_base + (col_begin + r) * scales_per_row + k0 / Traits::kBlock);
        uint32_t low = load_shared_4(at);
#pragma unroll
        for (int w = 0; w + 1 < BStage::kScaleWords; ++w) {
          const uint32_t high = load_shared_4(at + w * 4 + 4);
          scales[j][w] = __funnelshift_r(low, high, (first & 3u) * 8);
          low = high;
        }
      }
    }
    E8m0Factor factor[NT];
#pragma unroll
    for (int ks = 0; ks < BK / 16; ++ks) {
      uint32_t a[MT][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        const uint2 top = load_shared_8(a_at + i * 16 * Tile::kAStride + ks * 32);
        const uint2 bottom = load_shared_8(a_at + (i * 16 + 8) * Tile::kAStride + ks * 32);
        a[i][0] = top.x;
        a[i][1] = bottom.x;
        a[i][2] = top.y;
        a[i][3] = bottom.y;
      }
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const uint32_t at = b_at + j * 8 * BStage::kRowStride + ks * (2 * Traits::kBitsPerValue);
        uint32_t b0;
        uint32_t b1;
        if constexpr (F == WeightFormat::kBF16) {
          const uint2 b = load_shared_8(at);
          b0 = b.x;
          b1 = b.y;
        } else if constexpr (F == WeightFormat::kMXFP8) {
          if (ks % 2 == 0) {
            const int index = ks / 2;
            factor[j] = e8m0_factor((scales[j][index / 4] >> (index % 4 * 8)) & 0xffu);
          }
          decode_mxfp8(load_shared_4(at), factor[j], b0, b1);
        } else {
          const uint32_t code = (scales[j][ks / 4] >> (ks % 4 * 8)) & 0xffu;
          decode_nvfp4(load_shared_2(at), nvfp4_scale(code), b0, b1);
        }
#pragma unroll
        for (int i = 0; i < MT; ++i) mma_16816(acc[i][j], a[i], b0, b1);
      }
    }
  };

  for (int it = 0; it < steps; ++it) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    const int next = it + STAGES - 1;
    if (next < steps) issue(next % STAGES, next * BK);
    copy_commit();
    compute(it % STAGES, it * BK);
  }

  float b_outer = 1.0F;
  if constexpr (F == WeightFormat::kNVFP4) b_outer = *weight.outer;
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + i * 16 + half * 8 + group;
      if (r >= num_rows) continue;
      float outer = 1.0F;
      if constexpr (F == WeightFormat::kNVFP4) {
        const int64_t a_row = p.gather != nullptr ? p.gather[row_begin + r] : row_begin + r;
        outer = p.a_outer[a_row] * b_outer;
      }
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const int col = col_begin + warp_col + j * 8 + quad * 2;
        if (col >= p.n) continue;
        float x = acc[i][j][half * 2];
        float y = acc[i][j][half * 2 + 1];
        if constexpr (F == WeightFormat::kNVFP4) {
          x = ((x * kNvfp4Fold) * p.inverse) * outer;
          y = ((y * kNvfp4Fold) * p.inverse) * outer;
        }
        store_pair(p, row_begin + r, col, x, y);
      }
    }
  }
}

template <WeightFormat F, int MT, int NT, int WM, int WN, int BK, int STAGES>
void launch_forward(const ForwardParams& p, int32_t row_tiles, int32_t batch, StreamHandle stream) {
  using Tile = ForwardTile<F, MT, NT, WM, WN, BK, STAGES>;
  const auto kernel = forward_kernel<F, MT, NT, WM, WN, BK, STAGES>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  const dim3 grid(static_cast<unsigned>((p.n + Tile::kBN - 1) / Tile::kBN), static_cast<unsigned>(row_tiles),
                  static_cast<unsigned>(batch));
  kernel<<<grid, Tile::kThreads, Tile::kSharedBytes, stream>>>(p);
  check_launch("gemm_forward");
}

}  // namespace accord::kernels::cuda
