// attention_cuda.cu for many rows: a warp owns 16 query vectors from scores to results, all in registers.
// Where a sum's order is not the tensor core's it is attention_kernel's: quad lane t holds columns 8i + 2t,
// 8i + 2t
// + 1 of a block.
#include "kernels/attention/attention_block.cuh"
#include "kernels/attention/attention_shapes.hpp"

namespace accord::kernels::cuda::attention {
namespace {

constexpr int kQueries = 16 * kWarps;

template <int D, int V>
struct RowsLayout {
  static constexpr int kKeyStride = D * 2 + 16;
  static constexpr int kValueStride = V * 2 + 16;
  static constexpr int kK = 0;
  static constexpr int kV = kK + kBlock * kKeyStride;
  static constexpr int kStage = kV + kBlock * kValueStride;
  static constexpr int kBytes = 2 * kStage;
  static_assert(kQueries * kKeyStride <= kStage, "the queries pass through the second stage");
};

template <int D, int V>
__global__ void __launch_bounds__(kThreads)
    attention_rows_kernel(const AttentionForward p, int heads_per_tile) {
  using L = RowsLayout<D, V>;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  AttentionTile tile = p.tiles[blockIdx.y];
  {  // its rows that are this block's
    const int skipped = static_cast<int>(blockIdx.z) * (kQueries / heads_per_tile);
    if (skipped >= tile.num_rows) return;
    tile.row_begin += skipped;
    tile.first_position += skipped;
    tile.num_rows = min(tile.num_rows - skipped, kQueries / heads_per_tile);
  }
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  const int head_tiles = (heads_per_kv + heads_per_tile - 1) / heads_per_tile;
  const int kv_head = blockIdx.x / head_tiles;
  const int head0 = blockIdx.x % head_tiles * heads_per_tile;
  const int heads = min(heads_per_tile, heads_per_kv - head0);
  const int context = tile.first_position + tile.num_rows;
  const auto position_of = [&](int i) {
    const int row = i / heads_per_tile;
    return row < tile.num_rows && i % heads_per_tile < heads ? tile.first_position + row : -1;
  };
  const auto head_of = [&](int i) { return kv_head * heads_per_kv + head0 + i % heads_per_tile; };
  const auto row_of = [&](int i) { return static_cast<int64_t>(tile.row_begin + i / heads_per_tile); };

  const int32_t* const table = p.pages + tile.page_begin;
  const auto load_block = [&](int stage, int key0) {
    BlockPages pages;
    pages.read(table, key0, context);
    const uint32_t to = base + stage * L::kStage;
    copy_block<D>(p.k, p.k_stride, pages, kv_head, context - key0, to + L::kK, L::kKeyStride, tid);
    copy_block<V>(p.v, p.v_stride, pages, kv_head, context - key0, to + L::kV, L::kValueStride, tid);
  };
  static_assert(V <= D);

  for (int i = tid; i < kQueries * (D / 8); i += kThreads) {
    const int r = i / (D / 8);
    const int c = i % (D / 8) * 8;
    const bool valid = position_of(r) >= 0;
    const BF16* from = valid ? p.q + row_of(r) * p.q_stride + static_cast<int64_t>(head_of(r)) * D + c : p.q;
    copy_async<16>(base + L::kStage + r * L::kKeyStride + c * 2, from, valid);
  }
  copy_commit();
  load_block(0, 0);
  copy_commit();
  copy_wait<1>();
  __syncthreads();
  const int low = lane % 8 + lane / 8 % 2 * 8;
  const int high = lane / 16 * 8;
  uint32_t q[D / 16][4];
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    load_matrices(q[d], base + L::kStage + (warp * 16 + low) * L::kKeyStride + high * 2 + d * 32);
  }
  const uint32_t k_lane = base + L::kK + (lane % 8 + high) * L::kKeyStride + lane / 8 % 2 * 16;
  const uint32_t v_lane = base + L::kV + low * L::kValueStride + high * 2;
  const int position[2] = {position_of(warp * 16 + group), position_of(warp * 16 + group + 8)};

  float acc[V / 8][4] = {};
  float merged[V / 8][4] = {};
  float split_max[2] = {kMinusInfinity, kMinusInfinity};
  float split_sum[2] = {};
  float merged_max[2] = {kMinusInfinity, kMinusInfinity};
  float merged_sum[2] = {};
  const int blocks = (context + kBlock - 1) / kBlock;
  for (int block = 0; block < blocks; ++block) {
    const int key0 = block * kBlock;
    __syncthreads();  // the other stage is no longer read
    if (block + 1 < blocks) load_block((block + 1) % 2, key0 + kBlock);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    const uint32_t stage = block % 2 * L::kStage;

    float s[8][4] = {};
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t b[4];
        load_matrices(b, k_lane + stage + j * 16 * L::kKeyStride + d * 32);
        mma_16816(s[2 * j], q[d], b[0], b[1]);
        mma_16816(s[2 * j + 1], q[d], b[2], b[3]);
      }
    }
    uint32_t weights[4][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[16];
      float max = kMinusInfinity;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int key = key0 + i / 2 * 8 + quad * 2 + i % 2;
        x[i] = key <= position[half] ? s[i / 2][half * 2 + i % 2] * p.dims.scale : kMinusInfinity;
        max = fmaxf(max, x[i]);
      }
      float factor;
      const float sum = weigh(x, max, split_max[half], factor);
      split_max[half] = max;
      split_sum[half] = fmaf(split_sum[half], factor, sum);
#pragma unroll
      for (int j = 0; j < V / 8; ++j) {
        acc[j][half * 2] = acc[j][half * 2] * factor;
        acc[j][half * 2 + 1] = acc[j][half * 2 + 1] * factor;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) weights[i / 2][i % 2 * 2 + half] = bf16_pair(x[2 * i], x[2 * i + 1]);
    }
#pragma unroll
    for (int kk = 0; kk < kBlock / 16; ++kk) {
#pragma unroll
      for (int j = 0; j < V / 8; j += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, v_lane + stage + kk * 16 * L::kValueStride + j * 16);
        mma_16816(acc[j], weights[kk], b[0], b[1]);
        mma_16816(acc[j + 1], weights[kk], b[2], b[3]);
      }
    }

    if ((key0 + kBlock) % kSplit != 0 && block + 1 != blocks) continue;
    const int split = key0 / kSplit * kSplit;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (position[half] >= split) {
        const float max = fmaxf(merged_max[half], split_max[half]);
        const float a = exp_nonpositive(merged_max[half] - max);
        const float b = exp_nonpositive(split_max[half] - max);
        merged_sum[half] = fmaf(split_sum[half], b, merged_sum[half] * a);
        merged_max[half] = max;
#pragma unroll
        for (int j = 0; j < V / 8; ++j) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) merged[j][e] = fmaf(acc[j][e], b, merged[j][e] * a);
        }
      }
      split_max[half] = kMinusInfinity;
      split_sum[half] = 0.0F;
#pragma unroll
      for (int j = 0; j < V / 8; ++j) {
        acc[j][half * 2] = 0.0F;
        acc[j][half * 2 + 1] = 0.0F;
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (position[half] < 0) continue;
    const int query = warp * 16 + half * 8 + group;
    const float inverse = 1.0F / merged_sum[half];
    auto* out = reinterpret_cast<uint32_t*>(p.out + row_of(query) * p.out_stride +
                                            static_cast<int64_t>(head_of(query)) * V);
#pragma unroll
    for (int j = 0; j < V / 8; ++j) {
      out[j * 4 + quad] =
          bf16_pair(merged[j][half * 2] * inverse + 0.0F, merged[j][half * 2 + 1] * inverse + 0.0F);
    }
    if (quad == 0)
      p.lse[row_of(query) * p.dims.num_heads + head_of(query)] =
          merged_max[half] + log_scalar(merged_sum[half]);
  }
}

template <int D, int V>
void launch(const AttentionForward& args, StreamHandle stream) {
  constexpr int kShared = RowsLayout<D, V>::kBytes;
  const int heads = heads_per_tile(args.dims, kQueries);
  const int group = args.dims.num_heads / args.dims.num_kv_heads;
  // A tile may hold more rows than a block takes.
  const int rows = rows_per_tile(args.dims, queries_of(args.dims, /*few_rows=*/false));
  const int parts = (rows + kQueries / heads - 1) / (kQueries / heads);
  const dim3 grid(static_cast<unsigned>(args.dims.num_kv_heads * ((group + heads - 1) / heads)),
                  static_cast<unsigned>(args.num_tiles), static_cast<unsigned>(parts));
  const auto kernel = attention_rows_kernel<D, V>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  kernel<<<grid, kThreads, kShared, stream>>>(args, heads);
  check_launch("attention_forward rows");
}

}  // namespace

void launch_rows(const AttentionForward& args, StreamHandle stream) {
  switch (args.dims.head_dim) {
    case 16:
      return launch<16, 16>(args, stream);
    case 32:
      return launch<32, 32>(args, stream);
    case 48:
      return launch<48, 32>(args, stream);
    case 64:
      return launch<64, 64>(args, stream);
    case 128:
      return launch<128, 128>(args, stream);
    default:
      return launch<192, 128>(args, stream);
  }
}

}  // namespace accord::kernels::cuda::attention
