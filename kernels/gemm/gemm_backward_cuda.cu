// dgrad and wgrad (gemm_cuda.hpp): C[m,n] = sum over l of A(m,l) B[l,n], the rows of B along the contracted
// dimension; A[m,l] for dgrad, A[l,m] for wgrad. BF16 operands, l in ascending groups of 16, one accumulator.
//
// Tiles of BK contracted elements pass through a ring of shared-memory stages; what lies across the
// contracted dimension is turned by ldmatrix.trans. Elements past the edges are zeros and change no bit.
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/gemm_large.hpp"
#include "kernels/gemm/product_tile.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kBK = 64;

struct BackwardParams {
  const uint16_t* a;
  const uint16_t* b;
  void* c;
  int64_t lda, ldb, ldc;
  int32_t m, n, l;
  bool c_bf16, accumulate;
  int64_t a_batch, b_batch, c_batch;
  const GroupTile* tiles;
  const int32_t* num_tiles;
  const GemmWeight* experts;
  const int32_t* gather;  // rows of A (dgrad) or of B (wgrad)
  const int32_t* offsets;
  void* const* outputs;
};

// A across the contracted dimension: [kBK, BM]; along it: [BM, kBK]. Rows end in 16 bytes that keep ldmatrix
// free of bank conflicts.
template <bool A_ACROSS, int BM, int BN>
struct BackwardStage {
  static constexpr int kAStride = (A_ACROSS ? BM : kBK) * 2 + 16;
  static constexpr int kARows = A_ACROSS ? kBK : BM;
  static constexpr int kABytes = kARows * kAStride;
  static constexpr int kBStride = BN * 2 + 16;
  static constexpr int kBytes = kABytes + kBK * kBStride;
};

__device__ inline void store_result(const BackwardParams& p, int64_t row, int col, float x, float y) {
  const int64_t at = row * p.ldc + col;  // col and n are even
  if (p.c_bf16) {
    auto* c = static_cast<uint16_t*>(p.c) + at;
    c[0] = static_cast<uint16_t>(bf16_bits(x));
    c[1] = static_cast<uint16_t>(bf16_bits(y));
    return;
  }
  auto* c = static_cast<float*>(p.c) + at;
  c[0] = p.accumulate ? c[0] + x : x;
  c[1] = p.accumulate ? c[1] + y : y;
}

template <bool A_ACROSS, int MT, int NT, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(32 * WM * WN) backward_kernel(const BackwardParams params) {
  constexpr int kThreads = 32 * WM * WN;
  constexpr int kBM = 16 * MT * WM;
  constexpr int kBN = 8 * NT * WN;
  static_assert(NT % 2 == 0, "ldmatrix brings two column tiles at once");
  using Stage = BackwardStage<A_ACROSS, kBM, kBN>;
  extern __shared__ __align__(128) unsigned char shared[];
  BackwardParams p = params;

  TileRows rows;
  if (!place_tile(p, kBM, rows)) return;
  const int row_begin = rows.begin;
  const int num_rows = rows.count;
  const int col_begin = blockIdx.x * kBN;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int warp_row = (warp / WN) * MT * 16;
  const int warp_col = (warp % WN) * NT * 8;
  const uint32_t base = shared_address(shared);

  const auto issue = [&](int stage, int l0) {
    const uint32_t to = base + stage * Stage::kBytes;
    constexpr int kAChunks = (A_ACROSS ? kBM : kBK) / 8;
    for (int i = tid; i < Stage::kARows * kAChunks; i += kThreads) {
      const int r = i / kAChunks;
      const int c = i % kAChunks * 8;
      bool valid;
      const uint16_t* from;
      if constexpr (A_ACROSS) {
        valid = l0 + r < p.l && row_begin + c < p.m;
        from = p.a + (l0 + r) * p.lda + row_begin + c;
      } else {
        valid = r < num_rows && l0 + c < p.l;
        const int64_t row = valid && p.gather != nullptr ? p.gather[row_begin + r] : row_begin + r;
        from = p.a + row * p.lda + l0 + c;
      }
      copy_async<16>(to + r * Stage::kAStride + c * 2, valid ? from : params.a, valid);
    }
    constexpr int kBChunks = kBN / 8;
    for (int i = tid; i < kBK * kBChunks; i += kThreads) {
      const int r = i / kBChunks;
      const int c = i % kBChunks * 8;
      const bool valid = l0 + r < p.l && col_begin + c < p.n;
      int64_t row = l0 + r;
      if (A_ACROSS && valid && p.gather != nullptr) row = p.gather[row];
      copy_async<16>(to + Stage::kABytes + r * Stage::kBStride + c * 2,
                     valid ? p.b + row * p.ldb + col_begin + c : params.a, valid);
    }
  };

  float acc[MT][NT][4] = {};
  const int steps = (p.l + kBK - 1) / kBK;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) issue(s, s * kBK);
    copy_commit();
  }
  // Where a lane's matrix row lies (mma.cuh): matrices in the order of the fragment's registers.
  const int low = lane % 8 + (lane / 8) % 2 * 8;  // rows 0..15 in registers' order
  const int high = lane / 16 * 8;
  const uint32_t a_lane = A_ACROSS ? (lane % 8 + high) * Stage::kAStride + (warp_row + (lane / 8) % 2 * 8) * 2
                                   : (warp_row + low) * Stage::kAStride + high * 2;
  const uint32_t b_lane = Stage::kABytes + low * Stage::kBStride + (warp_col + high) * 2;

  for (int it = 0; it < steps; ++it) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    const int next = it + STAGES - 1;
    if (next < steps) issue(next % STAGES, next * kBK);
    copy_commit();
    const uint32_t stage = base + (it % STAGES) * Stage::kBytes;
#pragma unroll
    for (int ks = 0; ks < kBK / 16; ++ks) {
      uint32_t a[MT][4];
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        if constexpr (A_ACROSS) {
          load_matrices_transposed(a[i], stage + a_lane + ks * 16 * Stage::kAStride + i * 32);
        } else {
          load_matrices(a[i], stage + a_lane + i * 16 * Stage::kAStride + ks * 32);
        }
      }
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, stage + b_lane + ks * 16 * Stage::kBStride + j * 16);
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          mma_16816(acc[i][j], a[i], b[0], b[1]);
          mma_16816(acc[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  const int group = lane / 4;
  const int quad = lane % 4;
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + i * 16 + half * 8 + group;
      if (r >= num_rows) continue;
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const int col = col_begin + warp_col + j * 8 + quad * 2;
        if (col < p.n) store_result(p, row_begin + r, col, acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
      }
    }
  }
}

template <bool A_ACROSS, int MT, int NT, int WM, int WN, int STAGES>
void launch(const BackwardParams& p, int32_t row_tiles, int32_t depth, StreamHandle stream) {
  using Stage = BackwardStage<A_ACROSS, 16 * MT * WM, 8 * NT * WN>;
  const auto kernel = backward_kernel<A_ACROSS, MT, NT, WM, WN, STAGES>;
  constexpr int kShared = STAGES * Stage::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  constexpr int kBN = 8 * NT * WN;
  const dim3 grid(static_cast<unsigned>((p.n + kBN - 1) / kBN), static_cast<unsigned>(row_tiles),
                  static_cast<unsigned>(depth));
  kernel<<<grid, 32 * WM * WN, kShared, stream>>>(p);
  check_launch(A_ACROSS ? "gemm_wgrad" : "gemm_dgrad");
}

BackwardParams params_of(const GemmBackward& g) {
  BackwardParams p{};
  p.a = reinterpret_cast<const uint16_t*>(g.a);
  p.b = reinterpret_cast<const uint16_t*>(g.b);
  p.c = g.c.data;
  p.lda = g.lda;
  p.ldb = g.ldb;
  p.ldc = g.c.ld;
  p.m = static_cast<int32_t>(g.m);
  p.n = static_cast<int32_t>(g.n);
  p.l = static_cast<int32_t>(g.l);
  p.c_bf16 = g.c.bf16;
  p.accumulate = g.c.accumulate;
  p.a_batch = g.batch.a;
  p.b_batch = g.batch.b;
  p.c_batch = g.batch.c;
  return p;
}

LargeParams large_of(const BackwardParams& p) {
  LargeParams large{};
  large.a = p.a;
  large.b = p.b;
  large.c = p.c;
  large.lda = p.lda;
  large.ldb = p.ldb;
  large.ldc = p.ldc;
  large.m = p.m;
  large.n = p.n;
  large.l = p.l;
  large.c_bf16 = p.c_bf16;
  large.accumulate = p.accumulate;
  large.a_batch = p.a_batch;
  large.b_batch = p.b_batch;
  large.c_batch = p.c_batch;
  large.tiles = p.tiles;
  large.num_tiles = p.num_tiles;
  large.experts = p.experts;
  large.offsets = p.offsets;
  large.outputs = p.outputs;
  large.gather = p.gather;
  return large;
}

}  // namespace

void gemm_dgrad(const GemmBackward& g, StreamHandle stream) {
  require(gemm_dgrad_takes(g), "gemm_dgrad_takes(g)");
  if (g.m == 0 || g.batch.count == 0) return;
  BackwardParams p = params_of(g);
  int32_t tile_rows = g.m <= 16 ? 16 : g.m <= 64 ? 64 : 128;
  auto row_tiles = static_cast<int32_t>((g.m + tile_rows - 1) / tile_rows);
  if (g.groups != nullptr) {
    p.tiles = g.groups->tiles;
    p.num_tiles = g.groups->num_tiles;
    p.experts = g.groups->experts;
    p.gather = g.groups->gather;
    tile_rows = g.groups->tile_rows;
    row_tiles = g.groups->max_tiles;
  }
  if (tile_rows == 16) {
    launch<false, 1, 2, 1, 4, 5>(p, row_tiles, g.batch.count, stream);
  } else if (tile_rows == 64) {
    launch<false, 2, 2, 2, 4, 5>(p, row_tiles, g.batch.count, stream);
  } else if (g.groups != nullptr && !g.c.bf16 && wide_tiles_take(g.m, g.n, g.lda, g.c) &&
             large_products_available()) {
    launch_experts_dgrad(large_of(p), stream);
  } else if (large_products_available()) {
    launch_large(LargeForm::kDgrad, large_of(p), row_tiles, g.batch.count, stream);
  } else {
    launch<false, 4, 4, 2, 4, 4>(p, row_tiles, g.batch.count, stream);
  }
}

void gemm_wgrad(const GemmBackward& g, StreamHandle stream) {
  require(gemm_wgrad_takes(g), "gemm_wgrad_takes(g)");
  const bool grouped = g.offsets != nullptr;
  const int32_t depth = grouped ? g.num_experts : g.batch.count;
  if (g.m == 0 || depth == 0) return;
  BackwardParams p = params_of(g);
  p.offsets = g.offsets;
  p.gather = grouped ? g.b_gather : nullptr;
  p.outputs = g.outputs;
  const bool large = g.m > 64 && g.n > 64;
  const int32_t tile_rows = large ? 128 : 64;
  const auto row_tiles = static_cast<int32_t>((g.m + tile_rows - 1) / tile_rows);
  if (large && large_products_available()) {
    launch_large(LargeForm::kWgrad, large_of(p), row_tiles, depth, stream);
  } else if (large) {
    launch<true, 4, 4, 2, 4, 4>(p, row_tiles, depth, stream);
  } else {
    launch<true, 2, 2, 2, 4, 5>(p, row_tiles, depth, stream);
  }
}

}  // namespace accord::kernels::cuda
