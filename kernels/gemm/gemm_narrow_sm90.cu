// C[m,n] = sum over k of A[m,k] B[n,k] for few rows and few columns on wgmma (gemm_narrow.hpp): products that
// end so soon that the latency of memory and of their own chains is their time. Several of one A share a
// launch. Tiles of 64 rows of A by BN
// rows of B, so narrow that every multiprocessor has one; most of K is on its way from the start.
//
// A stage is 128 steps of K: A (and BF16 B) in two swizzled atoms of 64, quantized B as it lies. A thread
// decodes what it copied itself into one of three swizzled buffers while the product of the stage before
// runs; the barrier of that stage says that the one before it is over.
//
// Weights at rest are on their way before the kernel that makes A has ended (cuda/overlap.cuh).
#include "kernels/cuda/overlap.cuh"
#include "kernels/gemm/gemm_forward.cuh"
#include "kernels/gemm/gemm_narrow.hpp"
#include "kernels/gemm/wgmma.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;  // two warpgroups, of half the columns each
constexpr int kRows = 64;      // of A
constexpr int kStep = 128;     // of K
constexpr int kMaxScaleBytes = 20 * 1024;

template <WeightFormat F, int BN>
struct Layout {
  using Traits = WeightTraits<F>;
  static constexpr bool kPlain = F == WeightFormat::kBF16;
  static constexpr int kStages = BN == 64 ? 6 : 8;
  static constexpr int kABytes = kRows * kStep * 2;
  static constexpr int kDecodedBytes = BN * kStep * 2;
  static constexpr int kChunk = 2 * Traits::kBitsPerValue;  // bytes of 16 values of B
  static constexpr int kBBytes = kPlain ? kDecodedBytes : BN * kStep / 16 * kChunk;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kDecoded = kStages * kStageBytes;
  static constexpr int kScales = kDecoded + (kPlain ? 0 : 3 * kDecodedBytes);
  static constexpr int kSharedBytes = 1024 + kScales + (kPlain ? 0 : kMaxScaleBytes);
  static_assert(kStageBytes % 1024 == 0 && kDecodedBytes % 1024 == 0 && kSharedBytes <= 227 * 1024);
};

// The first product, and what others of the same A have of their own. A product's tiles follow those of the
// one before it.
struct NarrowParams {
  struct Other {
    GemmWeight b;
    void* c;
    int64_t ldc;
    int32_t n, first_tile;
  };
  ForwardParams first;
  Other others[kMostNarrow - 1];
  int32_t num_others;
};

template <WeightFormat F, int BN>
__global__ void __launch_bounds__(kThreads, 1) narrow_kernel(const NarrowParams params) {
  using L = Layout<F, BN>;
  constexpr bool kNvfp4 = F == WeightFormat::kNVFP4;
  constexpr int kStages = L::kStages;
  extern __shared__ __align__(1024) unsigned char raw_shared[];
  const uint32_t base = (shared_address(raw_shared) + 1023u) & ~1023u;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int half = __shfl_sync(gpu::kFullMask, warp / 4, 0);  // uniform, as descriptors must be
  ForwardParams p = params.first;
  int col_tile = blockIdx.x;
#pragma unroll
  for (int i = 0; i < static_cast<int>(kMostNarrow) - 1; ++i) {
    const NarrowParams::Other& other = params.others[i];
    if (i < params.num_others && static_cast<int>(blockIdx.x) >= other.first_tile) {
      p.b = other.b;
      p.c = other.c;
      p.ldc = other.ldc;
      p.n = other.n;
      col_tile = blockIdx.x - other.first_tile;
    }
  }
  const int col_begin = col_tile * BN;
  const int row_begin = blockIdx.y * kRows;
  const int num_rows = min(p.m - row_begin, kRows);

  // Sixteen chunks of 8 values of a row; rows 16 apart. Rows past the end are left as they are: nobody stores
  // what they give.
  const int chunk = tid % 16;
  const int row = tid / 16;
  const uint32_t to = base + (chunk % 8 ^ row % 8) * 16 + row * 128;
  const uint16_t* const a_from = p.a + (row_begin + row) * p.lda + chunk * 8;
  const auto* const b_data = static_cast<const unsigned char*>(p.b.data);
  // Quantized: eight chunks of 16 values of a row; rows 32 apart.
  const int group = tid % 8;
  const int b_row = tid / 8;
  constexpr int kRowsEach = BN < 32 ? 1 : BN / 32;
  const int64_t row_bytes = static_cast<int64_t>(p.k) * L::Traits::kBitsPerValue / 8;
  const auto issue_a = [&](int step) {
    const uint32_t stage = step % kStages * L::kStageBytes;
    const int k0 = step * kStep;
    const bool in = k0 + chunk * 8 < p.k;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      if (row + i * 16 < num_rows) {
        copy_async<16>(to + stage + chunk / 8 * (kRows * 128) + i * 2048,
                       in ? a_from + i * 16 * p.lda + k0 : p.a, in);
      }
    }
  };
  const auto issue_b = [&](int step) {
    const uint32_t stage = step % kStages * L::kStageBytes;
    const int k0 = step * kStep;
    if constexpr (L::kPlain) {
      const bool in = k0 + chunk * 8 < p.k;
      const auto* from = static_cast<const uint16_t*>(p.b.data) + chunk * 8 + k0;
#pragma unroll
      for (int i = 0; i < BN / 16; ++i) {
        const int r = min(col_begin + row + i * 16, p.n - 1);
        copy_async<16>(to + stage + L::kABytes + chunk / 8 * (BN * 128) + i * 2048,
                       in ? from + static_cast<int64_t>(r) * p.k : from - k0 - chunk * 8, in);
      }
    } else {
      const bool valid = k0 + group * 16 < p.k;
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        if (b_row + i * 32 >= BN) break;
        const int r = min(col_begin + b_row + i * 32, p.n - 1);
        copy_async<L::kChunk>(base + stage + L::kABytes + (i * kThreads + tid) * L::kChunk,
                              b_data + (valid ? r * row_bytes + (k0 / 16 + group) * L::kChunk : 0), valid);
      }
    }
  };

  const int row_scales = L::kPlain ? 0 : p.k / (L::kPlain ? 1 : L::Traits::kBlock);
  unsigned char* const scales = raw_shared + (base - shared_address(raw_shared)) + L::kScales;
  const auto bring_scales = [&] {
    // Those of the tile's rows are one piece.
    const uint8_t* from = p.b.scales + static_cast<int64_t>(col_begin) * row_scales;
    const int bytes = min(p.n - col_begin, BN) * row_scales;
    const uint32_t scales_to = base + L::kScales;
    for (int i = tid * 16; i < bytes; i += kThreads * 16) {
      if (i + 16 <= bytes) {
        copy_async<16>(scales_to + i, from + i, true);
      } else {
        for (int j = i; j < bytes; ++j) scales[j] = from[j];
      }
    }
  };
  const int steps = (p.k + kStep - 1) / kStep;
  if (p.b_at_rest) {
    if constexpr (!L::kPlain) bring_scales();
#pragma unroll
    for (int s = 0; s < kStages - 2; ++s) {
      if (s < steps) issue_b(s);
    }
  }
  gpu::wait_for_previous();
  gpu::allow_next();
  if constexpr (!L::kPlain) {
    if (!p.b_at_rest) bring_scales();
  }
#pragma unroll
  for (int s = 0; s < kStages - 2; ++s) {
    if (s < steps) {
      issue_a(s);
      if (!p.b_at_rest) issue_b(s);
    }
    copy_commit();
  }
  if constexpr (!L::kPlain) {
    copy_wait<kStages - 3>();
    __syncthreads();  // others' scales
  }

  float acc[BN / 4] = {};
  hold_accumulators(acc);  // zeros before the loop, not inside it
#pragma unroll 1
  for (int it = 0; it < steps; ++it) {
    copy_wait<kStages - 3>();
    const uint32_t stage = base + it % kStages * L::kStageBytes;
    uint32_t b_at = stage + L::kABytes;
    if constexpr (!L::kPlain) {
      b_at = base + L::kDecoded + it % 3 * L::kDecodedBytes;
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const int r = b_row + i * 32;
        if (r >= BN) break;
        const uint32_t from = stage + L::kABytes + (i * kThreads + tid) * L::kChunk;
        const uint32_t decoded = b_at + group / 4 * (BN * 128) + r * 128;
        const int first = group % 4 * 2;
        const int k = min(it * kStep + group * 16, p.k - 1);
        const uint32_t scale = scales[r * row_scales + k / L::Traits::kBlock];
        uint4 x;
        uint4 y;
        if constexpr (kNvfp4) {
          const uint2 codes = load_shared_8(from);
          const uint32_t s = nvfp4_scale(scale);
          decode_nvfp4(codes.x & 0xffffu, s, x.x, x.y);
          decode_nvfp4(codes.x >> 16, s, x.z, x.w);
          decode_nvfp4(codes.y & 0xffffu, s, y.x, y.y);
          decode_nvfp4(codes.y >> 16, s, y.z, y.w);
        } else {
          const uint4 codes = load_shared_16(from);
          const E8m0Factor f = e8m0_factor(scale);
          decode_mxfp8(codes.x, f, x.x, x.y);
          decode_mxfp8(codes.y, f, x.z, x.w);
          decode_mxfp8(codes.z, f, y.x, y.y);
          decode_mxfp8(codes.w, f, y.z, y.w);
        }
        store_shared_16(decoded + (first ^ (r % 8)) * 16, x);
        store_shared_16(decoded + ((first + 1) ^ (r % 8)) * 16, y);
      }
    }
    fence_async_proxy();
    __syncthreads();
    wgmma_fence();
    const uint64_t da = operand_descriptor(stage);
    const uint64_t db = operand_descriptor(b_at + half * (BN / 2 * 128));
#pragma unroll
    for (int ks = 0; ks < kStep / 16; ++ks) {
      wgmma<0, 0>(acc, da + (ks / 4 * (kRows * 128) + ks % 4 * 32) / 16,
                  db + (ks / 4 * (BN * 128) + ks % 4 * 32) / 16);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (it + kStages - 2 < steps) {
      issue_a(it + kStages - 2);
      issue_b(it + kStages - 2);
    }
    copy_commit();
  }
  wgmma_wait<0>();
  hold_accumulators(acc);

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = warp % 4 * 16 + h * 8 + lane / 4;
    if (r >= num_rows) continue;
    float outer = 1.0F;
    if constexpr (kNvfp4) outer = p.a_outer[row_begin + r] * *p.b.outer;
#pragma unroll
    for (int j = 0; j < BN / 16; ++j) {
      const int col = col_begin + half * (BN / 2) + j * 8 + lane % 4 * 2;
      if (col >= p.n) continue;
      float x = acc[j * 4 + h * 2];
      float y = acc[j * 4 + h * 2 + 1];
      if constexpr (kNvfp4) {
        x = ((x * kNvfp4Fold) * p.inverse) * outer;
        y = ((y * kNvfp4Fold) * p.inverse) * outer;
      }
      store_pair(p, row_begin + r, col, x, y);
    }
  }
}

template <WeightFormat F, int BN>
void launch(std::span<const ForwardParams> products, StreamHandle stream) {
  NarrowParams params{};
  params.first = products[0];
  auto tiles = static_cast<int32_t>(gpu::ceil_div(products[0].n, BN));
  for (const ForwardParams& p : products.subspan(1)) {
    params.others[params.num_others++] = {p.b, p.c, p.ldc, p.n, tiles};
    tiles += static_cast<int32_t>(gpu::ceil_div(p.n, BN));
  }
  using L = Layout<F, BN>;
  const auto kernel = narrow_kernel<F, BN>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kSharedBytes);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(gpu::ceil_div(products[0].m, kRows)));
  gpu::launch_overlapped(kernel, grid, kThreads, L::kSharedBytes, stream, params);
  check_launch("gemm_forward");
}

// The width of tiles that ends soonest: each tile's bytes at the rate of a multiprocessor, all tiles' at that
// of the L2 (in bytes per nanosecond, as an H200 has them).
int64_t narrow_tiles(std::span<const ForwardParams> products, int width) {
  int64_t tiles = 0;
  for (const ForwardParams& p : products) {
    tiles += gpu::ceil_div(p.n, width) * gpu::ceil_div(p.m, kRows);
  }
  return tiles;
}
int narrow_width(std::span<const ForwardParams> products) {
  const ForwardParams& p = products[0];
  constexpr double kTileRate = 110.0;
  constexpr double kAllRate = 5500.0;
  const double rows = p.m < kRows ? p.m : kRows;
  int best = 0;
  double best_time = 0.0;
  for (const int width : {16, 32, 64}) {
    const int64_t tiles = narrow_tiles(products, width);
    const double bytes = 2.0 * p.k * (rows + width);
    const double rounds = static_cast<double>(gpu::ceil_div(tiles, num_multiprocessors()));
    const double by_tile = rounds * bytes / kTileRate;
    const double by_all = static_cast<double>(tiles) * bytes / kAllRate;
    const double time = by_tile > by_all ? by_tile : by_all;
    if (best == 0 || time < best_time) {
      best = width;
      best_time = time;
    }
  }
  return best;
}

template <WeightFormat F>
bool launch_format(std::span<const ForwardParams> products, StreamHandle stream) {
  constexpr int kMostRounds = 1;
  const int width = narrow_width(products);
  if (narrow_tiles(products, width) > kMostRounds * num_multiprocessors()) return false;
  constexpr int kBlock = F == WeightFormat::kBF16 ? 0 : WeightTraits<F>::kBlock;
  if constexpr (kBlock != 0) {
    for (const ForwardParams& p : products) {
      if (p.k / kBlock * width > kMaxScaleBytes) return false;
      // Large weights for few rows: bound by reading and decoding them, which other kernels do better.
      if (p.m <= 16 && int64_t{p.n} * p.k > (int64_t{4} << 20)) return false;
    }
  }
  switch (width) {
    case 16:
      launch<F, 16>(products, stream);
      return true;
    case 32:
      launch<F, 32>(products, stream);
      return true;
    default:
      launch<F, 64>(products, stream);
      return true;
  }
}

}  // namespace

bool launch_narrow(WeightFormat format, std::span<const ForwardParams> products, StreamHandle stream) {
  switch (format) {
    case WeightFormat::kBF16:
      return launch_format<WeightFormat::kBF16>(products, stream);
    case WeightFormat::kMXFP8:
      return launch_format<WeightFormat::kMXFP8>(products, stream);
    case WeightFormat::kNVFP4:
      return launch_format<WeightFormat::kNVFP4>(products, stream);
    case WeightFormat::kF32:
      break;
  }
  return false;
}

}  // namespace accord::kernels::cuda
