// C[m,n] = sum over k of A[m,k] B[n,k] with MXFP8 or NVFP4 weights B on wgmma (gemm_large.hpp). The weights
// are the 64-row operand, decoded exactly into registers; rows of A, swizzled in shared memory, are the wide
// one. The tile is therefore C transposed and turns in shared memory on its way out. Stages and waits as in
// gemm_large_sm90.cu; a stage's weights are decoded while the products of the stage before run.
#include "kernels/gemm/large_loader.cuh"
#include "kernels/gemm/weight_fragment.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kReach = 2048;  // values of K whose scales are kept

template <WeightFormat F, int BN>
struct Layout {
  using Traits = WeightTraits<F>;
  using Tokens = Loader<false, BN>;
  static constexpr int kRowBytes = kBL * Traits::kBitsPerValue / 8;
  static constexpr int kRowStride = kRowBytes + 16;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kCopies = kBM * kChunks / kLargeThreads;
  static constexpr int kStageBytes = Tokens::kBytes + kBM * kRowStride;
  static_assert(kStageBytes % 1024 == 0, "swizzled tiles start at multiples of 1024 bytes");
  static constexpr int kPerStage = kBL / Traits::kBlock;
  static constexpr int kStageScales = kPerStage * kStoredScale<F>;  // bytes of a row and stage
  static constexpr int kOutStride = kBM * 2 + 16;
  static_assert(BN * kOutStride <= kStages * kStageBytes);
  static int scale_stride(int k) {
    const int stages = ((k < kReach ? k : kReach) + kBL - 1) / kBL;
    return (stages * kStageScales + 4 + 127) / 128 * 128 + 16;
  }
  static int shared_bytes(int k) { return 1024 + kStages * kStageBytes + kBM * scale_stride(k); }
};

__device__ inline void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                 uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

template <WeightFormat F, int BN>
__global__ void __launch_bounds__(kLargeThreads, 1) quantized_kernel(const LargeParams p, int scale_stride) {
  using L = Layout<F, BN>;
  using Traits = WeightTraits<F>;
  extern __shared__ __align__(1024) unsigned char raw_shared[];
  const uint32_t base = (shared_address(raw_shared) + 1023u) & ~1023u;
  unsigned char* const shared = raw_shared + (base - shared_address(raw_shared));
  unsigned char* const scales = shared + kStages * L::kStageBytes;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;

  int row_begin = blockIdx.y * BN;
  int num_rows = min(p.m - row_begin, BN);
  GemmWeight weight = p.weight;
  if (p.tiles != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *p.num_tiles) return;
    const GroupTile tile = p.tiles[blockIdx.y];
    row_begin = tile.row_begin;
    num_rows = tile.num_rows;
    weight = p.experts[tile.expert];
  }
  const int col_begin = blockIdx.x * kBM;

  typename L::Tokens tokens;
  tokens.init(p.a, p.lda, row_begin, num_rows, p.gather, tid, base);
  const int64_t row_bytes = static_cast<int64_t>(p.l) * Traits::kBitsPerValue / 8;
  const int chunk = tid % L::kChunks;
  const unsigned char* rows[L::kCopies];
#pragma unroll
  for (int i = 0; i < L::kCopies; ++i) {
    const int r = min(col_begin + tid / L::kChunks + i * (kLargeThreads / L::kChunks), p.n - 1);
    rows[i] = static_cast<const unsigned char*>(weight.data) + r * row_bytes + chunk * 16;
  }
  const uint32_t rows_to = base + L::Tokens::kBytes + tid / L::kChunks * L::kRowStride + chunk * 16;
  const auto issue = [&](int step) {
    const uint32_t offset = step % kStages * L::kStageBytes;
    tokens.issue(offset, step * kBL, p.l);
    const int byte0 = step * L::kRowBytes;
    const bool valid = byte0 + chunk * 16 < row_bytes;
#pragma unroll
    for (int i = 0; i < L::kCopies; ++i) {
      copy_async<16>(rows_to + offset + i * (kLargeThreads / L::kChunks) * L::kRowStride,
                     rows[i] + (valid ? byte0 : 0), valid);
    }
  };

  float acc[BN / 2] = {};
  const int steps = (p.l + kBL - 1) / kBL;
#pragma unroll
  for (int s = 0; s < kStages - 2; ++s) {
    if (s < steps) issue(s);
    copy_commit();
  }
  const uint32_t weight_lane = base + L::Tokens::kBytes + (warp * 16 + group) * L::kRowStride +
                               quad * (F == WeightFormat::kMXFP8 ? 2 : 1);
  const unsigned char* const scale_lane = scales + (warp * 16 + group) * scale_stride;

  // Fragments of a stage: elements 2 quad, 2 quad + 1, and those 8 further, of rows group and group + 8.
  const auto decode = [&](uint32_t(&w)[4][4], int it) {
    const uint32_t at = weight_lane + it % kStages * L::kStageBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned char* from =
          scale_lane + half * 8 * scale_stride + it % (kReach / kBL) * L::kStageScales;
      const uint32_t row = at + half * 8 * L::kRowStride;
      if constexpr (F == WeightFormat::kMXFP8) {
        const uint32_t two = *reinterpret_cast<const uint16_t*>(from);
        E8m0Factor factor{};
#pragma unroll
        for (int ks = 0; ks < 4; ++ks) {
          if (ks % 2 == 0) factor = e8m0_factor(ks == 0 ? two & 0xffu : two >> 8);
          const uint32_t codes = load_shared_2(row + ks * 16) | (load_shared_2(row + ks * 16 + 8) << 16);
          decode_mxfp8(codes, factor, w[ks][half], w[ks][half + 2]);
        }
      } else {
        const auto four = *reinterpret_cast<const uint2*>(from);
#pragma unroll
        for (int ks = 0; ks < 4; ++ks) {
          const uint32_t scale = __byte_perm(ks < 2 ? four.x : four.y, 0, ks % 2 == 0 ? 0x1010 : 0x3232);
          const uint32_t codes = load_shared_1(row + ks * 8) | (load_shared_1(row + ks * 8 + 4) << 8);
          decode_nvfp4(codes, scale, w[ks][half], w[ks][half + 2]);
        }
      }
    }
  };
  for (int it = 0; it < steps; ++it) {
    if (it % (kReach / kBL) == 0) {
      if (it != 0) __syncthreads();  // the previous scales are no longer read
      load_weight_scales<F, kBM, kLargeThreads>(weight, p.n, p.l, col_begin, it * kBL, kReach, scales,
                                                scale_stride, tid);
    }
    copy_wait<kStages - 3>();
    fence_async_proxy();
    __syncthreads();
    wgmma_wait<0>();  // this warpgroup's; the other's run meanwhile
    uint32_t w[4][4];
    decode(w, it);
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < kBL / 16; ++ks) {
      wgmma(acc, w[ks], operand_descriptor(base + it % kStages * L::kStageBytes + ks * 32));
    }
    wgmma_commit();
    if (it + kStages - 2 < steps) issue(it + kStages - 2);
    copy_commit();
  }
  wgmma_wait<0>();
  hold_accumulators(acc);

  // acc[4 j + 2 half + e]: column warp * 16 + half * 8 + group of C, row 8 j + 2 quad + e.
  if constexpr (F == WeightFormat::kNVFP4) {
    const float b_outer = *weight.outer;
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int r = row_begin + min(j * 8 + quad * 2 + e, num_rows - 1);
        const float outer = p.a_outer[p.gather != nullptr ? p.gather[r] : r] * b_outer;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = acc[j * 4 + half * 2 + e];
          x = ((x * kNvfp4Fold) * p.inverse) * outer;
        }
      }
    }
  }
  if (!p.c_bf16) {
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = j * 8 + quad * 2 + e % 2;
        const int col = col_begin + warp * 16 + e / 2 * 8 + group;
        if (r >= num_rows || col >= p.n) continue;
        float* c = static_cast<float*>(p.c) + (row_begin + r) * p.ldc + col;
        *c = p.accumulate ? *c + acc[j * 4 + e] : acc[j * 4 + e];
      }
    }
    return;
  }
  copy_wait<0>();
  __syncthreads();  // the stages are free
  const uint32_t turn =
      base + (lane / 16 * 8 + lane % 8) * L::kOutStride + (warp * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll
  for (int j = 0; j < BN / 8; j += 2) {
    store_matrices_transposed(turn + j * 8 * L::kOutStride, bf16_pair(acc[j * 4], acc[j * 4 + 1]),
                              bf16_pair(acc[j * 4 + 2], acc[j * 4 + 3]),
                              bf16_pair(acc[j * 4 + 4], acc[j * 4 + 5]),
                              bf16_pair(acc[j * 4 + 6], acc[j * 4 + 7]));
  }
  __syncthreads();
  const bool vectors = p.ldc % 8 == 0 && (reinterpret_cast<uintptr_t>(p.c) & 15u) == 0;
  for (int i = tid; i < num_rows * (kBM / 8); i += kLargeThreads) {
    const int r = i / (kBM / 8);
    const int col = i % (kBM / 8) * 8;
    const auto* from = reinterpret_cast<const uint16_t*>(shared + r * L::kOutStride) + col;
    auto* to = static_cast<uint16_t*>(p.c) + (row_begin + r) * p.ldc + col_begin + col;
    if (vectors && col_begin + col + 8 <= p.n) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < 8 && col_begin + col + j < p.n; ++j) to[j] = from[j];
    }
  }
}

template <WeightFormat F, int BN>
void launch(const LargeParams& p, int32_t row_tiles, StreamHandle stream) {
  using L = Layout<F, BN>;
  const auto kernel = quantized_kernel<F, BN>;
  const int bytes = L::shared_bytes(p.l);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(static_cast<unsigned>((p.n + kBM - 1) / kBM), static_cast<unsigned>(row_tiles));
  kernel<<<grid, kLargeThreads, bytes, stream>>>(p, L::scale_stride(p.l));
  check_launch("large quantized product");
}

template <WeightFormat F>
void launch_width(const LargeParams& p, int32_t row_tiles, StreamHandle stream) {
  const int64_t wide = gpu::ceil_div(p.m, 256);
  if (p.tiles == nullptr && wide * gpu::ceil_div(p.n, kBM) >= num_multiprocessors()) {
    launch<F, 256>(p, static_cast<int32_t>(wide), stream);
  } else {
    launch<F, 128>(p, row_tiles, stream);
  }
}

}  // namespace

void launch_large_quantized(WeightFormat format, const LargeParams& p, int32_t row_tiles,
                            StreamHandle stream) {
  if (format == WeightFormat::kMXFP8) {
    launch_width<WeightFormat::kMXFP8>(p, row_tiles, stream);
  } else {
    launch_width<WeightFormat::kNVFP4>(p, row_tiles, stream);
  }
}

}  // namespace accord::kernels::cuda
