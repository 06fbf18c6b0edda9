// out = softmax(scale q k^T, causal) v over a paged cache (attention_cuda.hpp has the order of every sum).
// q [T, H*D], k [rows, G*D], v [rows, G*V], out [T, H*V]; H query heads, G key/value heads.
//
// Few rows: a block of four warps owns 16 query vectors (rows times heads of one key/value head). Per block
// of 64 keys:
//   scores   warp w: all queries x keys 16w .. 16w+15                       -> shared memory, fp32, masked
//   softmax  eight threads per query: maximum, p, sum; rescaling factor      -> p as bf16
//   values   warp w: all queries x columns [w V/4, (w+1) V/4), in registers; V < 64: warps of 16 columns
// while further blocks arrive. With many rows (attention_rows_cuda.cu) a warp keeps 16 queries to itself
// instead.
#include "kernels/attention/attention_block.cuh"
#include "kernels/attention/attention_shapes.hpp"
#include "kernels/cuda/overlap.cuh"
#include "kernels/gemm/gemm_large.hpp"

namespace accord::kernels::cuda {
namespace attention {
namespace {

constexpr int kScoreStride = 72;                // floats: rows of a quad's reads hit distinct banks
constexpr int kWeightStride = kBlock * 2 + 16;  // bytes
constexpr float kKeep = -1.0F;                  // merge factor of a query that sees nothing of the split

template <int D, int V>
struct Layout {
  static constexpr bool kSharedValues = D == 576;
  static constexpr int kQueries = 16;
  static constexpr int kWarpColumns = V < 16 * kWarps ? 16 : V / kWarps;  // of the values
  static constexpr int kValueWarps = V / kWarpColumns;
  // Blocks in shared memory: one, of which keys are replaced after the scores and values after their use; or
  // two.
  static constexpr int kStages = kSharedValues ? 2 : 1;
  static constexpr int kKeyStride = D * 2 + 16;
  static constexpr int kValueStride = kSharedValues ? kKeyStride : V * 2 + 16;
  static constexpr int kValueOffset = kSharedValues ? 0 : kBlock * kKeyStride;
  static constexpr int kStage = kValueOffset + kBlock * kValueStride;
  static constexpr int kK = kQueries * kKeyStride;
  static constexpr int kScores = kK + kStages * kStage;
  static constexpr int kWeights = kScores + kQueries * kScoreStride * 4;
  static constexpr int kStats = kWeights + kQueries * kWeightStride;
  static constexpr int kBytes = kStats + kQueries * 7 * 4;
};

template <int D, int V>
__global__ void __launch_bounds__(kThreads) attention_kernel(const AttentionForward p, int heads_per_tile) {
  using L = Layout<D, V>;
  constexpr int kColumns = L::kWarpColumns / 8;  // 8-column tiles of a warp
  static_assert(kColumns % 2 == 0 && D % 16 == 0);
  extern __shared__ __align__(128) unsigned char shared[];
  auto* scores = reinterpret_cast<float*>(shared + L::kScores);
  auto* split_max = reinterpret_cast<float*>(shared + L::kStats);
  float* split_sum = split_max + L::kQueries;
  float* rescale = split_sum + L::kQueries;
  float* merged_max = rescale + L::kQueries;
  float* merged_sum = merged_max + L::kQueries;
  float* merge_old = merged_sum + L::kQueries;
  float* merge_new = merge_old + L::kQueries;
  const uint32_t base = shared_address(shared);

  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const AttentionTile tile = tile_at_rest(p.tiles + blockIdx.y);
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  const int head_tiles = (heads_per_kv + heads_per_tile - 1) / heads_per_tile;
  const int kv_head = blockIdx.x / head_tiles;
  const int head0 = blockIdx.x % head_tiles * heads_per_tile;
  const int heads = min(heads_per_tile, heads_per_kv - head0);
  const bool partial = p.partials != nullptr;
  const int context = tile.first_position + tile.num_rows;  // keys that some query sees
  const int first_key = partial ? static_cast<int>(blockIdx.z) * kSplit : 0;
  const int last_key = partial ? min(context, first_key + kSplit) : context;
  const int32_t* const table = p.pages + tile.page_begin;
  BlockPages pages{};
  if (first_key < last_key) pages.read_at_rest(table, first_key, context);
  gpu::wait_for_previous();  // tiles and pages are the host's: no kernel writes them
  gpu::allow_next();
  if (first_key >= last_key) return;

  // Query i is row i / heads_per_tile of the tile, head i % heads_per_tile; position -1: none.
  const auto position_of = [&](int i) {
    const int row = i / heads_per_tile;
    return row < tile.num_rows && i % heads_per_tile < heads ? tile.first_position + row : -1;
  };
  const auto head_of = [&](int i) { return kv_head * heads_per_kv + head0 + i % heads_per_tile; };
  const auto row_of = [&](int i) { return static_cast<int64_t>(tile.row_begin + i / heads_per_tile); };

  for (int i = tid; i < L::kQueries * (D / 8); i += kThreads) {
    const int r = i / (D / 8);
    const int c = i % (D / 8) * 8;
    const bool valid = position_of(r) >= 0;
    const BF16* from = valid ? p.q + row_of(r) * p.q_stride + static_cast<int64_t>(head_of(r)) * D + c : p.q;
    copy_async<16>(base + r * L::kKeyStride + c * 2, from, valid);
  }
  const auto load_keys = [&](int key0) {
    if (key0 < last_key) {
      copy_block<D>(p.k, p.k_stride, pages, kv_head, last_key - key0,
                    base + L::kK + key0 / kBlock % L::kStages * L::kStage, L::kKeyStride, tid);
    }
    copy_commit();
  };
  const auto load_values = [&](int key0) {
    if constexpr (!L::kSharedValues) {
      if (key0 < last_key) {
        copy_block<V>(p.v, p.v_stride, pages, kv_head, last_key - key0, base + L::kK + L::kValueOffset,
                      L::kValueStride, tid);
      }
      copy_commit();
    }
    pages.read(table, key0 + kBlock, context);
  };

  if (tid < L::kQueries) {
    split_max[tid] = kMinusInfinity;
    split_sum[tid] = 0.0F;
    merged_max[tid] = kMinusInfinity;
    merged_sum[tid] = 0.0F;
  }
  float acc[kColumns][4] = {};
  float merged[kColumns][4] = {};
  const int low = lane % 8 + lane / 8 % 2 * 8;
  const int high = lane / 16 * 8;
  const uint32_t q_lane = base + low * L::kKeyStride + high * 2;
  const uint32_t k_lane = base + L::kK + (warp * 16 + lane % 8 + high) * L::kKeyStride + lane / 8 % 2 * 16;
  const uint32_t w_lane = base + L::kWeights + low * kWeightStride + high * 2;
  const uint32_t v_lane =
      base + L::kK + L::kValueOffset + low * L::kValueStride + (warp * L::kWarpColumns + high) * 2;

  const bool has_values = L::kValueWarps == kWarps || warp < L::kValueWarps;
  const int position[2] = {position_of(group), position_of(group + 8)};
  load_keys(first_key);
  load_values(first_key);
  for (int key0 = first_key; key0 < last_key; key0 += kBlock) {
    copy_wait<L::kSharedValues ? 0 : 1>();
    __syncthreads();
    if constexpr (L::kSharedValues) {  // over the block before, which is no longer read
      load_keys(key0 + kBlock);
      load_values(key0 + kBlock);
    }
    const uint32_t stage = key0 / kBlock % L::kStages * L::kStage;
    {
      float s[2][4] = {};
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        uint32_t b[4];
        uint32_t a[4];
        load_matrices(b, k_lane + stage + d * 32);
        load_matrices(a, q_lane + d * 32);
        mma_16816(s[0], a, b[0], b[1]);
        mma_16816(s[1], a, b[2], b[3]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = half * 8 + group;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = warp * 16 + j * 8 + quad * 2;
          float2 pair;
          pair.x = key0 + column <= position[half] ? s[j][half * 2] * p.dims.scale : kMinusInfinity;
          pair.y = key0 + column + 1 <= position[half] ? s[j][half * 2 + 1] * p.dims.scale : kMinusInfinity;
          *reinterpret_cast<float2*>(scores + query * kScoreStride + column) = pair;
        }
      }
    }
    __syncthreads();
    if constexpr (!L::kSharedValues) load_keys(key0 + kBlock);

    {  // eight threads per query
      const int query = tid / 8;
      const int first = tid / 4 % 2 * 4;  // of the groups of eight columns
      float x[8];
      float max = kMinusInfinity;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair =
            *reinterpret_cast<const float2*>(scores + query * kScoreStride + 8 * (first + i) + 2 * quad);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
        max = fmaxf(max, fmaxf(pair.x, pair.y));  // ignores NaN, which comes back through the sum
      }
      float factor;
      const float sum = weigh(x, max, split_max[query], factor);
      __syncwarp();  // all eight have read the old maximum
      if (tid % 8 == 0) {
        split_max[query] = max;
        split_sum[query] = fmaf(split_sum[query], factor, sum);
        rescale[query] = factor;
      }
      auto* weights = reinterpret_cast<uint32_t*>(shared + L::kWeights + query * kWeightStride);
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[4 * (first + i) + quad] = bf16_pair(x[2 * i], x[2 * i + 1]);
    }
    if constexpr (!L::kSharedValues) copy_wait<1>();
    __syncthreads();

    if (has_values) {
      const float top = rescale[group];
      const float bottom = rescale[group + 8];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        acc[j][0] = acc[j][0] * top;
        acc[j][1] = acc[j][1] * top;
        acc[j][2] = acc[j][2] * bottom;
        acc[j][3] = acc[j][3] * bottom;
      }
#pragma unroll
      for (int kk = 0; kk < kBlock / 16; ++kk) {
        uint32_t a[4];
        load_matrices(a, w_lane + kk * 32);
#pragma unroll
        for (int j = 0; j < kColumns; j += 2) {
          uint32_t b[4];
          load_matrices_transposed(b, v_lane + stage + kk * 16 * L::kValueStride + j * 16);
          mma_16816(acc[j], a, b[0], b[1]);
          mma_16816(acc[j + 1], a, b[2], b[3]);
        }
      }
    }

    if constexpr (!L::kSharedValues) {
      __syncthreads();  // the values are no longer read
      load_values(key0 + kBlock);
    }
    const bool split_ends = (key0 + kBlock) % kSplit == 0 || key0 + kBlock >= last_key;
    if (!split_ends || partial) continue;
    const int split = key0 / kSplit * kSplit;
    if (tid < L::kQueries) {
      float a = kKeep;
      float b = 0.0F;
      if (position_of(tid) >= split) {
        const float max = fmaxf(merged_max[tid], split_max[tid]);
        a = exp_nonpositive(merged_max[tid] - max);
        b = exp_nonpositive(split_max[tid] - max);
        merged_sum[tid] = fmaf(split_sum[tid], b, merged_sum[tid] * a);
        merged_max[tid] = max;
      }
      merge_old[tid] = a;
      merge_new[tid] = b;
      split_max[tid] = kMinusInfinity;
      split_sum[tid] = 0.0F;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float a = merge_old[half * 8 + group];
      const float b = merge_new[half * 8 + group];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          if (a != kKeep) merged[j][e] = fmaf(acc[j][e], b, merged[j][e] * a);
          acc[j][e] = 0.0F;
        }
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = half * 8 + group;
    if (!has_values || position_of(query) < first_key) continue;
    const int head = head_of(query);
    const int64_t row = row_of(query);
    const int column0 = warp * L::kWarpColumns + quad * 2;
    if (partial) {
      const int64_t at = (row * p.dims.num_heads + head) * p.max_splits + blockIdx.z;
      auto* stats = static_cast<float2*>(p.partials);
      auto* sums = reinterpret_cast<float*>(stats + p.num_rows * p.dims.num_heads * p.max_splits) + at * V;
      if (warp == 0 && quad == 0) stats[at] = {split_max[query], split_sum[query]};
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        *reinterpret_cast<float2*>(sums + column0 + j * 8) = {acc[j][half * 2], acc[j][half * 2 + 1]};
      }
      continue;
    }
    const float inverse = 1.0F / merged_sum[query];
    auto* out = reinterpret_cast<uint32_t*>(p.out + row * p.out_stride + static_cast<int64_t>(head) * V);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      out[(column0 + j * 8) / 2] =
          bf16_pair(merged[j][half * 2] * inverse + 0.0F, merged[j][half * 2 + 1] * inverse + 0.0F);
    }
    if (warp == 0 && quad == 0) {
      p.lse[row * p.dims.num_heads + head] = merged_max[query] + log_scalar(merged_sum[query]);
    }
  }
}

// One warp per (row, head): the splits' results in ascending order, as attention_kernel merges its own.
template <int V>
__global__ void __launch_bounds__(kThreads) merge_kernel(const AttentionForward p) {
  constexpr int kPairs = V < 64 ? 1 : V / 64;
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= p.num_rows * p.dims.num_heads) return;
  const int lane = threadIdx.x % 32;
  const bool has_values = V >= 64 || 2 * lane < V;
  const int64_t row = index / p.dims.num_heads;
  const int64_t head = index % p.dims.num_heads;
  const int position = p.positions[row];
  const auto* stats = static_cast<const float2*>(p.partials);
  const auto* sums = reinterpret_cast<const float*>(stats + p.num_rows * p.dims.num_heads * p.max_splits);
  float merged[2 * kPairs] = {};
  float max = kMinusInfinity;
  float sum = 0.0F;
  for (int split = 0; split * kSplit <= position; ++split) {
    const int64_t at = index * p.max_splits + split;
    const float2 part = stats[at];
    const float next = fmaxf(max, part.x);
    const float a = exp_nonpositive(max - next);
    const float b = exp_nonpositive(part.x - next);
    sum = fmaf(part.y, b, sum * a);
    max = next;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (!has_values) continue;
      const float2 x = *reinterpret_cast<const float2*>(sums + at * V + 64 * i + 2 * lane);
      merged[2 * i] = fmaf(x.x, b, merged[2 * i] * a);
      merged[2 * i + 1] = fmaf(x.y, b, merged[2 * i + 1] * a);
    }
  }
  const float inverse = 1.0F / sum;
  auto* out = reinterpret_cast<uint32_t*>(p.out + row * p.out_stride + head * V);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (!has_values) continue;
    out[32 * i + lane] = bf16_pair(merged[2 * i] * inverse + 0.0F, merged[2 * i + 1] * inverse + 0.0F);
  }
  if (lane == 0) p.lse[index] = max + log_scalar(sum);
}

bool hopper_rows(const AttentionForward& args) {
  const AttentionDims& d = args.dims;
  return !args.portable && large_products_available() && d.scale > 0.0F && d.head_dim == d.v_head_dim &&
         (d.head_dim == 64 || d.head_dim == 128);
}

template <int D, int V>
void launch(const AttentionForward& args, StreamHandle stream) {
  if (queries_of(args.dims, args.few_rows) != 16) {
    require(args.partials == nullptr, "args.partials == nullptr");
    return hopper_rows(args) ? launch_rows_sm90(args, stream) : launch_rows(args, stream);
  }
  const int heads = heads_per_tile(args.dims, 16);
  const int group = args.dims.num_heads / args.dims.num_kv_heads;
  const dim3 grid(static_cast<unsigned>(args.dims.num_kv_heads * ((group + heads - 1) / heads)),
                  static_cast<unsigned>(args.num_tiles),
                  static_cast<unsigned>(args.partials == nullptr ? 1 : args.max_splits));
  constexpr int kShared = Layout<D, V>::kBytes;
  const auto kernel = attention_kernel<D, V>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  gpu::launch_overlapped(kernel, grid, kThreads, kShared, stream, args, heads);
  check_launch("attention_forward");
  if (args.partials != nullptr) {
    const int64_t work = args.num_rows * args.dims.num_heads;
    gpu::launch_overlapped(merge_kernel<V>, static_cast<unsigned>(gpu::ceil_div(work, kWarps)), kThreads, 0,
                           stream, args);
    check_launch("attention_forward merge");
  }
}

}  // namespace
}  // namespace attention

void attention_forward(const AttentionForward& args, StreamHandle stream) {
  require(attention_takes(args.dims) && args.num_tiles <= 65535,
          "attention_takes(args.dims) && args.num_tiles <= 65535");
  if (args.num_tiles == 0) return;
  switch (args.dims.head_dim) {
    case 16:
      return attention::launch<16, 16>(args, stream);
    case 32:
      return attention::launch<32, 32>(args, stream);
    case 48:
      return attention::launch<48, 32>(args, stream);
    case 64:
      return attention::launch<64, 64>(args, stream);
    case 128:
      return attention::launch<128, 128>(args, stream);
    case 192:
      return attention::launch<192, 128>(args, stream);
    default:
      return attention::launch<576, 512>(args, stream);
  }
}

}  // namespace accord::kernels::cuda
