// C[m,n] (+)= sum over l of A(m,l) B(n,l) on wgmma (gemm_large.hpp). BF16 operands through a ring of swizzled
// shared-memory stages of 64 steps of l, filled by cp.async; two warpgroups own 64 rows of the 128 x kBN tile
// each.
//
// Stage it is multiplied while stages it + 1 and it + 2 arrive; the loads of it + 2 overwrite stage it - 2,
// whose products are over: every warpgroup waits for its products of it - 1 before it passes the barrier of
// it + 1. l in ascending groups of 16, one accumulator: the chain of exact.hpp. Zeros past the edges change
// no bit.
#include "kernels/gemm/large_loader.cuh"
#include "kernels/gemm/product_tile.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kPrefetchSteps = 6;

// A warp's sixteen rows turn in shared memory (the stages, which are free), so that it reads and writes whole
// lines; reads come in batches ahead of the writes that depend on them.
template <int BN>
__device__ inline void store_f32(const LargeParams& p, const float (&acc)[BN / 2], int row_begin,
                                 int num_rows, int col_begin, int tid, uint32_t shared) {
  constexpr int kStride = BN * 4 + 32;
  constexpr int kChunks = BN / 4;
  constexpr int kBatch = 8;
  const int lane = tid % 32;
  const uint32_t turn = shared + tid / 32 * 16 * kStride;
#pragma unroll
  for (int j = 0; j < BN / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_shared_8(turn + (half * 8 + lane / 4) * kStride + (j * 8 + lane % 4 * 2) * 4,
                     {__float_as_uint(acc[j * 4 + half * 2]), __float_as_uint(acc[j * 4 + half * 2 + 1])});
    }
  }
  __syncwarp();
  float* const c = static_cast<float*>(p.c) + (row_begin + tid / 32 * 16) * p.ldc + col_begin;
  const int rows = min(num_rows - tid / 32 * 16, 16);
#pragma unroll 1
  for (int begin = lane; begin < rows * kChunks; begin += kBatch * 32) {
    float4 sum[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = begin + i * 32;
      const int col = at % kChunks * 4;
      if (p.accumulate && at < rows * kChunks && col_begin + col < p.n) {
        sum[i] = *reinterpret_cast<const float4*>(c + at / kChunks * p.ldc + col);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = begin + i * 32;
      const int col = at % kChunks * 4;
      if (at >= rows * kChunks || col_begin + col >= p.n) continue;
      const uint4 bits = load_shared_16(turn + at / kChunks * kStride + col * 4);
      const float4 x = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                        __uint_as_float(bits.w)};
      *reinterpret_cast<float4*>(c + at / kChunks * p.ldc + col) =
          p.accumulate ? float4{sum[i].x + x.x, sum[i].y + x.y, sum[i].z + x.z, sum[i].w + x.w} : x;
    }
  }
}

template <bool A_ACROSS, bool B_ACROSS, int BN>
__global__ void __launch_bounds__(kLargeThreads, 1) large_kernel(const LargeParams params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  LargeParams p = params;
  TileRows rows;
  if (!place_tile(p, kBM, rows)) return;
  const int row_begin = rows.begin;
  const int num_rows = rows.count;
  const int col_begin = blockIdx.x * BN;
  const int tid = threadIdx.x;
  const int warpgroup = tid / 128;
  using ALoader = Loader<A_ACROSS, kBM>;
  using BLoader = Loader<B_ACROSS, BN>;
  constexpr uint32_t kStageBytes = ALoader::kBytes + BLoader::kBytes;
  const uint32_t base = (shared_address(shared) + 1023u) & ~1023u;
  ALoader a;
  BLoader b;
  a.init(p.a, p.lda, row_begin, num_rows, A_ACROSS ? nullptr : p.gather, tid, base);
  b.init(p.b, p.ldb, col_begin, min(p.n - col_begin, BN), A_ACROSS ? p.gather : nullptr, tid,
         base + ALoader::kBytes);

  // Experts' weights come from memory: they are brought to L2 some stages before their copies.
  const uint16_t* const ahead = p.tiles != nullptr && !B_ACROSS && tid < BN
                                    ? p.b + int64_t{min(col_begin + tid, p.n - 1)} * p.ldb
                                    : nullptr;
  const auto prefetch = [&](int step) {
    if (ahead != nullptr && step * kBL < p.l) prefetch_l2(ahead + step * kBL);
  };

  // So are sums that grow.
  if (p.accumulate) {
    for (int i = tid; i < num_rows * (BN / 32); i += kLargeThreads) {
      const int col = col_begin + i % (BN / 32) * 32;
      if (col < p.n) prefetch_l2(static_cast<float*>(p.c) + (row_begin + i / (BN / 32)) * p.ldc + col);
    }
  }

  float acc[BN / 2] = {};
  const int steps = (p.l + kBL - 1) / kBL;
  const bool has_rows = warpgroup * 64 < num_rows;
#pragma unroll
  for (int s = 0; s < kStages - 2; ++s) {
    if (s < steps) {
      a.issue(s * kStageBytes, s * kBL, p.l);
      b.issue(s * kStageBytes, s * kBL, p.l);
    }
    copy_commit();
  }
  for (int s = kStages - 2; s < kPrefetchSteps; ++s) prefetch(s);
  for (int it = 0; it < steps; ++it) {
    copy_wait<kStages - 3>();
    fence_async_proxy();
    __syncthreads();
    const uint32_t stage = base + it % kStages * kStageBytes;
    if (has_rows) {
      wgmma_fence();
#pragma unroll
      for (int ks = 0; ks < kBL / 16; ++ks) {
        const uint64_t da = operand_descriptor(
            stage + (A_ACROSS ? warpgroup * kBlockBytes + ks * 2048 : warpgroup * kBlockBytes + ks * 32));
        const uint64_t db = operand_descriptor(stage + ALoader::kBytes + (B_ACROSS ? ks * 2048 : ks * 32));
        wgmma<A_ACROSS, B_ACROSS>(acc, da, db);
      }
      wgmma_commit();
      wgmma_wait<1>();
    }
    const int next = it + kStages - 2;
    if (next < steps) {
      a.issue(next % kStages * kStageBytes, next * kBL, p.l);
      b.issue(next % kStages * kStageBytes, next * kBL, p.l);
    }
    copy_commit();
    prefetch(it + kPrefetchSteps);
  }
  wgmma_wait<0>();
  hold_accumulators(acc);

  const int lane = tid % 32;
  if (p.c_bf16 && col_begin + BN <= p.n && p.ldc % 8 == 0 && (reinterpret_cast<uintptr_t>(p.c) & 15u) == 0) {
    // Through shared memory, a warp's sixteen rows at a time, to whole lines.
    constexpr int kStride = BN * 2 + 16;
    copy_wait<0>();
    __syncthreads();  // the stages are free
    const uint32_t turn = base + tid / 32 * 16 * kStride;
    const uint32_t to = turn + lane % 16 * kStride + lane / 16 * 16;
#pragma unroll
    for (int j = 0; j < BN / 8; j += 2) {
      store_matrices(to + j * 16, bf16_pair(acc[j * 4], acc[j * 4 + 1]),
                     bf16_pair(acc[j * 4 + 2], acc[j * 4 + 3]), bf16_pair(acc[j * 4 + 4], acc[j * 4 + 5]),
                     bf16_pair(acc[j * 4 + 6], acc[j * 4 + 7]));
    }
    __syncwarp();
    constexpr int kChunks = BN / 8;
    auto* const c = static_cast<uint16_t*>(p.c) + (row_begin + tid / 32 * 16) * p.ldc + col_begin;
    const int rows = min(num_rows - tid / 32 * 16, 16);
    for (int i = lane; i < rows * kChunks; i += 32) {
      const int r = i / kChunks;
      const int chunk = i % kChunks;
      *reinterpret_cast<uint4*>(c + r * p.ldc + chunk * 8) = load_shared_16(turn + r * kStride + chunk * 16);
    }
    return;
  }
  if (!p.c_bf16 && p.n % 4 == 0 && p.ldc % 4 == 0 && (reinterpret_cast<uintptr_t>(p.c) & 15u) == 0) {
    copy_wait<0>();
    __syncthreads();  // the stages are free
    store_f32<BN>(p, acc, row_begin, num_rows, col_begin, tid, base);
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = tid / 32 * 16 + half * 8 + lane / 4;
    if (r >= num_rows) continue;
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
      const int col = col_begin + j * 8 + lane % 4 * 2;
      if (col < p.n) store_pair(p, row_begin + r, col, acc[j * 4 + half * 2], acc[j * 4 + half * 2 + 1]);
    }
  }
}

template <bool A_ACROSS, bool B_ACROSS, int BN>
void launch(const LargeParams& p, int32_t row_tiles, int32_t depth, StreamHandle stream) {
  const auto kernel = large_kernel<A_ACROSS, B_ACROSS, BN>;
  constexpr int kShared = kStages * (kBM + BN) * kBL * 2 + 1024;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const dim3 grid(static_cast<unsigned>((p.n + BN - 1) / BN), static_cast<unsigned>(row_tiles),
                  static_cast<unsigned>(depth));
  kernel<<<grid, kLargeThreads, kShared, stream>>>(p);
  check_launch("large product");
}

template <bool A_ACROSS, bool B_ACROSS>
void launch_width(const LargeParams& p, int32_t row_tiles, int32_t depth, StreamHandle stream) {
  switch (tile_width(p.n, int64_t{row_tiles} * depth)) {
    case 64:
      return launch<A_ACROSS, B_ACROSS, 64>(p, row_tiles, depth, stream);
    case 128:
      return launch<A_ACROSS, B_ACROSS, 128>(p, row_tiles, depth, stream);
    default:
      return launch<A_ACROSS, B_ACROSS, 256>(p, row_tiles, depth, stream);
  }
}

}  // namespace

extern template void launch_experts_of<WeightFormat::kBF16, false>(const LargeParams&, StreamHandle);
extern template void launch_experts_of<WeightFormat::kMXFP8, false>(const LargeParams&, StreamHandle);
extern template void launch_experts_of<WeightFormat::kNVFP4, false>(const LargeParams&, StreamHandle);
extern template void launch_experts_of<WeightFormat::kBF16, true>(const LargeParams&, StreamHandle);

void launch_experts_dgrad(const LargeParams& p, StreamHandle stream) {
  launch_experts_of<WeightFormat::kBF16, true>(p, stream);
}

void launch_experts(WeightFormat format, const LargeParams& p, StreamHandle stream) {
  if (format == WeightFormat::kBF16) {
    launch_experts_of<WeightFormat::kBF16, false>(p, stream);
  } else if (format == WeightFormat::kMXFP8) {
    launch_experts_of<WeightFormat::kMXFP8, false>(p, stream);
  } else {
    launch_experts_of<WeightFormat::kNVFP4, false>(p, stream);
  }
}

void launch_large(LargeForm form, const LargeParams& p, int32_t row_tiles, int32_t depth,
                  StreamHandle stream) {
  switch (form) {
    case LargeForm::kForward:
      launch_width<false, false>(p, row_tiles, depth, stream);
      break;
    case LargeForm::kDgrad:
      launch_width<false, true>(p, row_tiles, depth, stream);
      break;
    case LargeForm::kWgrad:
      launch_width<true, true>(p, row_tiles, depth, stream);
      break;
  }
}

}  // namespace accord::kernels::cuda
