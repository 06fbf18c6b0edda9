// C[m,n] = sum over k of A[m,k] B[n,k] with MXFP8 or NVFP4 weights B on wgmma (gemm_large.hpp). The weights
// are the 64-row operand, decoded exactly into registers; rows of A, swizzled in shared memory, are the wide
// one. The tile is therefore C transposed and turns in shared memory on its way out. Stages and waits as in
// gemm_large_sm90.cu; a stage's weights are decoded while the products of the stage before run.
#include "kernels/gemm/large_loader.cuh"
#include "kernels/gemm/weight_fragment.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kReach = 512;  // values of K whose scales are held, twice: in use and next
constexpr int kReachSteps = kReach / kBL;
constexpr int kPrefetchSteps = 12;  // weights are brought to L2 so many stages before their copies

template <WeightFormat F, int BN>
struct Layout {
  using Traits = WeightTraits<F>;
  static constexpr int kTokenBytes = Loader<false, BN>::kBytes;
  static constexpr int kRowBytes = kBL * Traits::kBitsPerValue / 8;
  static constexpr int kRowStride = kRowBytes + 16;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kCopies = kBM * kChunks / kLargeThreads;
  static constexpr int kStageBytes = kTokenBytes + kBM * kRowStride;
  static_assert(kStageBytes % 1024 == 0, "swizzled tiles start at multiples of 1024 bytes");
  static constexpr int kStageScales = kBL / Traits::kBlock * kStoredScale<F>;  // bytes of a row and stage
  static constexpr int kUnits = kReach / Traits::kBlock / 16;  // sixteen scales, of a row and reach
  static constexpr int kScaleStride = kUnits * 16 * kStoredScale<F> + (F == WeightFormat::kNVFP4 ? 16 : 0);
  static constexpr int kScaleBytes = kBM * kScaleStride;
  static constexpr int kOutStride = kBM * 2 + 16;
  static_assert(BN * kOutStride <= kStages * kStageBytes && kBM * kUnits <= kLargeThreads);
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + 2 * kScaleBytes + BN * 4;
};

// The tile of N rows of A (num_rows of them valid) and kBM columns of C.
template <WeightFormat F, int BN, int N>
__device__ inline void quantized_tile(const LargeParams& p, const GemmWeight& weight, int row_begin,
                                      int num_rows, int col_begin, unsigned char* shared, uint32_t base) {
  using L = Layout<F, BN>;
  using Traits = WeightTraits<F>;
  unsigned char* const scales = shared + kStages * L::kStageBytes;
  auto* const outer = reinterpret_cast<float*>(scales + 2 * L::kScaleBytes);
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;

  Loader<false, N> tokens;
  tokens.init(p.a, p.lda, row_begin, num_rows, p.gather, tid, base);
  const int64_t row_bytes = static_cast<int64_t>(p.l) * Traits::kBitsPerValue / 8;
  const auto* const data = static_cast<const unsigned char*>(weight.data);
  const int chunk = tid % L::kChunks;
  const unsigned char* rows[L::kCopies];
#pragma unroll
  for (int i = 0; i < L::kCopies; ++i) {
    const int r = min(col_begin + tid / L::kChunks + i * (kLargeThreads / L::kChunks), p.n - 1);
    rows[i] = data + r * row_bytes + chunk * 16;
  }
  const uint32_t rows_to = base + L::kTokenBytes + tid / L::kChunks * L::kRowStride + chunk * 16;
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
  // Lines of 128 bytes that stage `step` begins.
  const unsigned char* const ahead = data + min(col_begin + tid % kBM, p.n - 1) * row_bytes;
  const auto prefetch = [&](int step) {
    const int64_t at = static_cast<int64_t>(step) * L::kRowBytes;
    if (tid < kBM && at < row_bytes) prefetch_l2(ahead + at);
  };

  float acc[N / 2] = {};
  const int steps = (p.l + kBL - 1) / kBL;
#pragma unroll
  for (int s = 0; s < kStages - 2; ++s) {
    if (s < steps) issue(s);
    copy_commit();
  }
  for (int s = kStages - 2; s < kPrefetchSteps; ++s) {
    if (s % (128 / L::kRowBytes) == 0) prefetch(s);
  }

  // Scales: of row scale_row, sixteen from scale_unit * 16 of a reach on.
  const int scale_row = tid / L::kUnits;
  const int scale_unit = tid % L::kUnits;
  const int per_row = p.l / Traits::kBlock;
  const auto fetch_scales = [&](int reach) -> uint4 {
    const int first = reach * (kReach / Traits::kBlock) + scale_unit * 16;
    if (scale_row >= kBM || first >= per_row) return {};
    const uint8_t* from =
        weight.scales + static_cast<int64_t>(min(col_begin + scale_row, p.n - 1)) * per_row + first;
    const auto bits = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from));
    return sixteen_scales(from, per_row - first, bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1);
  };
  const auto put_scales = [&](const uint4& codes, int reach) {
    if (scale_row >= kBM) return;
    auto* to = reinterpret_cast<uint4*>(scales + reach % 2 * L::kScaleBytes + scale_row * L::kScaleStride +
                                        scale_unit * 16 * kStoredScale<F>);
    if constexpr (F == WeightFormat::kNVFP4) {
      const uint2 a = nvfp4_scales(codes.x);
      const uint2 b = nvfp4_scales(codes.y);
      const uint2 c = nvfp4_scales(codes.z);
      const uint2 d = nvfp4_scales(codes.w);
      to[0] = {a.x, a.y, b.x, b.y};
      to[1] = {c.x, c.y, d.x, d.y};
    } else {
      to[0] = codes;
    }
  };
  uint4 held = fetch_scales(0);
  if constexpr (F == WeightFormat::kNVFP4) {
    if (tid < num_rows) {
      const int r = row_begin + tid;
      outer[tid] = p.a_outer[p.gather != nullptr ? p.gather[r] : r] * *weight.outer;
    }
  }
  put_scales(held, 0);

  const uint32_t weight_lane = base + L::kTokenBytes + (warp * 16 + group) * L::kRowStride +
                               quad * (F == WeightFormat::kMXFP8 ? 2 : 1);
  const unsigned char* const scale_lane = scales + (warp * 16 + group) * L::kScaleStride;

  // Fragments of a stage: elements 2 quad, 2 quad + 1, and those 8 further, of rows group and group + 8.
  const auto decode = [&](uint32_t(&w)[4][4], int it) {
    const uint32_t at = weight_lane + it % kStages * L::kStageBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned char* from = scale_lane + it / kReachSteps % 2 * L::kScaleBytes +
                                  half * 8 * L::kScaleStride + it % kReachSteps * L::kStageScales;
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
    if (it % kReachSteps == 0) held = fetch_scales(it / kReachSteps + 1);
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
    if ((it + kPrefetchSteps) % (128 / L::kRowBytes) == 0) prefetch(it + kPrefetchSteps);
    if (it % kReachSteps == kReachSteps - 1) put_scales(held, it / kReachSteps + 1);
  }
  wgmma_wait<0>();
  hold_accumulators(acc);

  // acc[4 j + 2 half + e]: column warp * 16 + half * 8 + group of C, row 8 j + 2 quad + e.
  if constexpr (F == WeightFormat::kNVFP4) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float both = outer[min(j * 8 + quad * 2 + e, num_rows - 1)];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = acc[j * 4 + half * 2 + e];
          x = ((x * kNvfp4Fold) * p.inverse) * both;
        }
      }
    }
  }
  if (!p.c_bf16) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
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
  for (int j = 0; j < N / 8; j += 2) {
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

// Two blocks of narrow tiles share a multiprocessor: one multiplies while the other decodes, starts or ends.
// A wide tile of experts is two neighbours of the list, so that weights are decoded half as often.
template <WeightFormat F, int BN>
__global__ void __launch_bounds__(kLargeThreads, BN == 128 ? 2 : 1) quantized_kernel(const LargeParams p) {
  extern __shared__ __align__(1024) unsigned char raw_shared[];
  const uint32_t base = (shared_address(raw_shared) + 1023u) & ~1023u;
  unsigned char* const shared = raw_shared + (base - shared_address(raw_shared));
  int row_begin = blockIdx.y * BN;
  int num_rows = min(p.m - row_begin, BN);
  GemmWeight weight = p.weight;
  if (p.tiles != nullptr) {
    const int index = static_cast<int>(blockIdx.y);
    const int num_tiles = *p.num_tiles;
    if (index >= num_tiles) return;
    const GroupTile tile = p.tiles[index];
    row_begin = tile.row_begin;
    num_rows = tile.num_rows;
    if (BN == 256) {
      int first = index;
      while (first > 0 && p.tiles[first - 1].expert == tile.expert) --first;
      if ((index - first) % 2 != 0) return;  // the one before takes it
      if (index + 1 < num_tiles && p.tiles[index + 1].expert == tile.expert) {
        num_rows += p.tiles[index + 1].num_rows;
      }
    }
    weight = p.experts[tile.expert];
  }
  const int col_begin = blockIdx.x * kBM;
  if (num_rows <= 64) {
    quantized_tile<F, BN, 64>(p, weight, row_begin, num_rows, col_begin, shared, base);
  } else if (BN == 128 || num_rows <= 128) {
    quantized_tile<F, BN, 128>(p, weight, row_begin, num_rows, col_begin, shared, base);
  } else {
    quantized_tile<F, BN, BN>(p, weight, row_begin, num_rows, col_begin, shared, base);
  }
}

template <WeightFormat F, int BN>
void launch(const LargeParams& p, int32_t row_tiles, StreamHandle stream) {
  const auto kernel = quantized_kernel<F, BN>;
  constexpr int kBytes = Layout<F, BN>::kSharedBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(static_cast<unsigned>((p.n + kBM - 1) / kBM), static_cast<unsigned>(row_tiles));
  kernel<<<grid, kLargeThreads, kBytes, stream>>>(p);
  check_launch("large quantized product");
}

template <WeightFormat F>
void launch_width(const LargeParams& p, int32_t row_tiles, StreamHandle stream) {
  const int64_t wide = gpu::ceil_div(p.m, 256);
  const int64_t columns = gpu::ceil_div(p.n, kBM);
  if (p.tiles != nullptr) {
    // row_tiles is at most the full tiles and one for every expert (group_tiles_bound).
    const int64_t experts = row_tiles - p.m / kBM;
    if (p.m >= 192 * experts) return launch<F, 256>(p, row_tiles, stream);
  } else if (wide * columns >= num_multiprocessors()) {
    return launch<F, 256>(p, static_cast<int32_t>(wide), stream);
  }
  launch<F, 128>(p, row_tiles, stream);
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
