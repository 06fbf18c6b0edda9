// Backward of causal attention (attention_backward.hpp has the formulas), in three products with one owner
// for every output:
//   dq  tile of 64 queries, one head:     over key tiles ascending        dq += ds k
//   dk  tile of 64 keys, one kv head:     over its heads, query tiles     dk += ds^T q
//   dv  likewise                                                          dv += p^T do
// Each computes its scores again: s = x1 y1^T and dp = x2 y2^T with own rows x and loop rows y, staged in
// chunks of 64 columns; then p = exp(scale s - lse), ds = p (dp - delta) scale in registers, rounded to bf16,
// times z, the loop rows' columns of this block (at most 128). delta = rowsum(do * o).
//         x1  y1  x2  y2  z
//   dq    q   k   do  v   k
//   dk    k   q   v   do  q
//   dv    k   q           do
#include "kernels/attention/attention_backward_tiles.cuh"
#include "kernels/attention/attention_shapes.hpp"
#include "kernels/gemm/gemm_large.hpp"

namespace accord::kernels::cuda {
namespace {

enum class Part { kQuery, kKey, kValue };

constexpr int kThreads = 128;
constexpr int kTile = 64;
constexpr int kColumns = 128;                 // of the result, per block
constexpr int kChunkStride = kTile * 2 + 16;  // bytes
constexpr int kChunkBytes = kTile * kChunkStride;
constexpr int kZStride = kColumns * 2 + 16;
constexpr int kStages = 3;
constexpr int kStageBytes = 2 * kChunkBytes;
constexpr int kZ = kStages * kStageBytes;
constexpr int kLse = kZ + kTile * kZStride;  // lse and delta of the query rows of the tile
constexpr int kSharedBytes = kLse + 2 * kTile * 4;

// One operand: columns [column, ...) of rows of a packed sequence.
struct Operand {
  const BF16* data;
  int64_t stride;
};

struct TileAt {
  int head;
  int begin;  // first loop row
};

template <Part PART>
__global__ void __launch_bounds__(kThreads) backward_kernel(const AttentionBackwardArgs p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  auto* lse = reinterpret_cast<float*>(shared + kLse);
  float* delta = lse + kTile;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const AttentionBackwardTile tile = p.tiles[blockIdx.y];
  const int d = p.dims.head_dim;
  const int v = p.dims.v_head_dim;
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  const int width = PART == Part::kValue ? v : d;
  const int column0 = blockIdx.x * kColumns;
  const int columns = min(width - column0, kColumns);
  const int kv_head = PART == Part::kQuery ? blockIdx.z / heads_per_kv : blockIdx.z;
  const int rows = tile.num_rows;

  // The loop: key tiles up to the diagonal, or query tiles from the diagonal on for each head of the group.
  const int query_tiles = (rows - tile.tile_begin + kTile - 1) / kTile;
  const int loop_tiles = PART == Part::kQuery ? tile.tile_begin / kTile + 1 : query_tiles * heads_per_kv;
  const auto tile_at = [&](int i) -> TileAt {
    if constexpr (PART == Part::kQuery) return {static_cast<int>(blockIdx.z), i * kTile};
    return {kv_head * heads_per_kv + i / query_tiles, tile.tile_begin + i % query_tiles * kTile};
  };
  const int score_chunks = d / kTile;
  const int chunks = score_chunks + (PART == Part::kValue ? 0 : v / kTile);
  const int jobs = loop_tiles * chunks;

  const auto head_columns = [&](const BF16* data, int64_t stride, int64_t column) -> Operand {
    return {data + tile.row_begin * stride + column, stride};
  };
  const auto load = [&](Operand from, int first_row, int width_elements, uint32_t to, int to_stride) {
    const int per_row = width_elements / 8;
    for (int i = tid; i < kTile * per_row; i += kThreads) {
      const int r = i / per_row;
      const int c = i % per_row * 8;
      const bool valid = first_row + r < rows;
      copy_async<16>(to + r * to_stride + c * 2,
                     valid ? from.data + (first_row + r) * from.stride + c : from.data, valid);
    }
  };
  const auto query_operand = [&](int head, int column) {
    return head_columns(p.q, p.q_stride, static_cast<int64_t>(head) * d + column);
  };
  const auto key_operand = [&](int column) {
    return head_columns(p.k, p.k_stride, static_cast<int64_t>(kv_head) * d + column);
  };
  const auto dout_operand = [&](int head, int column) {
    return head_columns(p.dout, p.dout_stride, static_cast<int64_t>(head) * v + column);
  };
  const auto value_operand = [&](int column) {
    return head_columns(p.v, p.v_stride, static_cast<int64_t>(kv_head) * v + column);
  };
  const auto issue = [&](int job) {
    if (job < jobs) {
      const TileAt at = tile_at(job / chunks);
      const int chunk = job % chunks;
      const bool scores = chunk < score_chunks;
      const int column = (scores ? chunk : chunk - score_chunks) * kTile;
      const Operand on_queries = scores ? query_operand(at.head, column) : dout_operand(at.head, column);
      const Operand on_keys = scores ? key_operand(column) : value_operand(column);
      const uint32_t to = base + job % kStages * kStageBytes;
      load(PART == Part::kQuery ? on_queries : on_keys, tile.tile_begin, kTile, to, kChunkStride);
      load(PART == Part::kQuery ? on_keys : on_queries, at.begin, kTile, to + kChunkBytes, kChunkStride);
    }
  };

  float acc[kColumns / 8][4] = {};
  const int low = lane % 8 + lane / 8 % 2 * 8;
  const int high = lane / 16 * 8;
  const uint32_t x_lane = (warp * 16 + low) * kChunkStride + high * 2;
  const uint32_t y_lane = kChunkBytes + (lane % 8 + high) * kChunkStride + lane / 8 % 2 * 16;
  const uint32_t z_lane = base + kZ + low * kZStride + high * 2;

  issue(0);
  copy_commit();
  issue(1);
  copy_commit();
  int job = 0;
  for (int t = 0; t < loop_tiles; ++t) {
    const TileAt at = tile_at(t);
    float s[8][4] = {};
    float dp[8][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk, ++job) {
      copy_wait<1>();
      __syncthreads();
      issue(job + 2);
      if (chunk == 0) {  // the previous tile's z, lse and delta are no longer read
        const Operand z = PART == Part::kQuery ? key_operand(column0)
                          : PART == Part::kKey ? query_operand(at.head, column0)
                                               : dout_operand(at.head, column0);
        load(z, at.begin, columns, base + kZ, kZStride);
        if (tid < kTile) {
          const int row = (PART == Part::kQuery ? tile.tile_begin : at.begin) + tid;
          const int64_t index = static_cast<int64_t>(tile.row_begin + row) * p.dims.num_heads + at.head;
          lse[tid] = row < rows ? p.lse[index] : 0.0F;
          delta[tid] = row < rows ? p.delta[index] : 0.0F;
        }
      }
      copy_commit();
      const uint32_t stage = base + job % kStages * kStageBytes;
      const auto product = [&](float(&c)[8][4]) {
#pragma unroll
        for (int k = 0; k < kTile / 16; ++k) {
          uint32_t a[4];
          load_matrices(a, stage + x_lane + k * 32);
#pragma unroll
          for (int j = 0; j < 8; j += 2) {
            uint32_t b[4];
            load_matrices(b, stage + y_lane + j * 8 * kChunkStride + k * 32);
            mma_16816(c[j], a, b[0], b[1]);
            mma_16816(c[j + 1], a, b[2], b[3]);
          }
        }
      };
      if (chunk < score_chunks) {
        product(s);
      } else {
        product(dp);
      }
    }
    copy_wait<0>();
    __syncthreads();

    // p or ds, as bf16 A fragments of the product with z.
    uint32_t weights[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float out[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int own = warp * 16 + half * 8 + group;
          const int other = j * 8 + quad * 2 + e;
          const int query = PART == Part::kQuery ? own : other;
          const int query_row = (PART == Part::kQuery ? tile.tile_begin : at.begin) + query;
          const int key_row = PART == Part::kQuery ? at.begin + other : tile.tile_begin + own;
          const bool seen = key_row <= query_row && query_row < rows;
          const float weight = exp_scalar(s[j][half * 2 + e] * p.dims.scale - lse[query]);
          float x = weight;
          if constexpr (PART != Part::kValue) {
            x = (weight * (dp[j][half * 2 + e] - delta[query])) * p.dims.scale;
          }
          out[e] = seen ? x : 0.0F;
        }
        weights[j / 2][j % 2 * 2 + half] = bf16_pair(out[0], out[1]);
      }
    }
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        if (j * 8 < columns) {
          uint32_t b[4];
          load_matrices_transposed(b, z_lane + k * 16 * kZStride + j * 16);
          mma_16816(acc[j], weights[k], b[0], b[1]);
          mma_16816(acc[j + 1], weights[k], b[2], b[3]);
        }
      }
    }
    // The next tile's first wait and barrier come before anything that this tile still reads is overwritten.
  }

  float* result = PART == Part::kQuery ? p.dq : PART == Part::kKey ? p.dk : p.dv;
  const int64_t stride = static_cast<int64_t>(gridDim.z) * width;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile.tile_begin + warp * 16 + half * 8 + group;
    if (row >= rows) continue;
    float* out =
        result + (tile.row_begin + row) * stride + static_cast<int64_t>(blockIdx.z) * width + column0;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (j * 8 < columns) {
        *reinterpret_cast<float2*>(out + j * 8 + quad * 2) = {acc[j][half * 2], acc[j][half * 2 + 1]};
      }
    }
  }
}

// One warp per (row, head).
__global__ void __launch_bounds__(kThreads) delta_kernel(const AttentionBackwardArgs p) {
  const int64_t index = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (index >= p.num_rows * p.dims.num_heads) return;
  const int64_t row = index / p.dims.num_heads;
  const int64_t column = index % p.dims.num_heads * p.dims.v_head_dim;
  const BF16* out = p.out + row * p.out_stride + column;
  const BF16* dout = p.dout + row * p.dout_stride + column;
  float sum = 0.0F;
  for (int i = threadIdx.x % 32; i < p.dims.v_head_dim; i += 32) {
    sum = fmaf(to_float(out[i]), to_float(dout[i]), sum);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum = sum + __shfl_xor_sync(gpu::kFullMask, sum, step);
  if (threadIdx.x % 32 == 0) p.delta[index] = sum;
}

template <Part PART>
void launch(const AttentionBackwardArgs& args, int width, int depth, StreamHandle stream) {
  const auto kernel = backward_kernel<PART>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  const dim3 grid(static_cast<unsigned>((width + kColumns - 1) / kColumns),
                  static_cast<unsigned>(args.num_tiles), static_cast<unsigned>(depth));
  kernel<<<grid, kThreads, kSharedBytes, stream>>>(args);
  check_launch("attention_backward");
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& args, StreamHandle stream) {
  const AttentionDims& d = args.dims;
  const bool small = d.head_dim < kTile && attention_takes(d);
  require((small || (d.head_dim % kTile == 0 && d.v_head_dim % kTile == 0)) && args.num_tiles <= 65535,
          "(small || (d.head_dim % kTile == 0 && d.v_head_dim % kTile == 0)) && args.num_tiles <= 65535");
  if (args.num_tiles == 0) return;
  const int64_t work = args.num_rows * d.num_heads;
  delta_kernel<<<static_cast<unsigned>(gpu::ceil_div(work, kThreads / 32)), kThreads, 0, stream>>>(args);
  check_launch("attention_backward delta");
  if (!args.portable && d.head_dim == d.v_head_dim && (d.head_dim == 64 || d.head_dim == 128) &&
      large_products_available()) {
    return attention::launch_backward_sm90(args, stream);
  }
  if (small && d.head_dim == 16) return launch_backward_tiles<16, 16>(args, stream);
  if (small && d.head_dim == 32) return launch_backward_tiles<32, 32>(args, stream);
  if (small) return launch_backward_tiles<48, 32>(args, stream);
  if (d.head_dim == 64 && d.v_head_dim == 64) return launch_backward_tiles<64, 64>(args, stream);
  if (d.head_dim == 128 && d.v_head_dim == 128) return launch_backward_tiles<128, 128>(args, stream);
  launch<Part::kQuery>(args, d.head_dim, d.num_heads, stream);
  launch<Part::kKey>(args, d.head_dim, d.num_kv_heads, stream);
  launch<Part::kValue>(args, d.v_head_dim, d.num_kv_heads, stream);
}

}  // namespace accord::kernels::cuda
