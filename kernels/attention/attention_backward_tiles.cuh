#pragma once
// Backward of causal attention for head sizes whose tiles stay in shared memory and registers (to 128): the
// sums of attention_backward_cuda.cu, in the same order, with s and dp computed once for dk and dv.
//   keys      tile of 64 keys, one kv head: over its heads and query tiles, dv += p^T do, dk += ds^T q
//   queries   tile of 64 queries, one head: over key tiles, dq += ds k
// A warp owns 16 rows of the tile; the loop's tiles pass through two stages of shared memory.
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/mma.cuh"
#include "kernels/math/exp_log.hpp"

namespace accord::kernels::cuda {

constexpr int kTileRows = 64;
constexpr int kTileThreads = 128;

template <int D, int V>
struct TileLayout {
  static constexpr int kD = D * 2 + 16;  // bytes of a row of queries or keys
  static constexpr int kV = V * 2 + 16;  // of values or output gradients
  static constexpr int kPair = kTileRows * (kD + kV);
  static constexpr int kSecond = kTileRows * kD;  // where the V-wide half of a pair starts
  static constexpr int kStats = 3 * kPair;        // own pair, two stages; lse and delta of two query tiles
  static constexpr int kBytes = kStats + 2 * 2 * kTileRows * 4;
};

// Rows [first, first + 64) of a packed sequence of `rows` rows; zeros past its end.
template <int WIDTH, int STRIDE>
__device__ inline void load_tile(const BF16* data, int64_t stride, int first, int rows, uint32_t to,
                                 int tid) {
  constexpr int kChunks = WIDTH / 8;
#pragma unroll
  for (int i = 0; i < kTileRows * kChunks / kTileThreads; ++i) {
    const int index = i * kTileThreads + tid;
    const int r = index / kChunks;
    const int c = index % kChunks * 8;
    const bool valid = first + r < rows;
    copy_async<16>(to + r * STRIDE + c * 2, data + (valid ? first + r : 0) * stride + c, valid);
  }
}

// c (16 x 64) = own rows (this warp's 16) times other rows (64), over WIDTH columns; both row-major with
// STRIDE.
template <int WIDTH, int STRIDE>
__device__ inline void multiply_rows(float (&c)[8][4], uint32_t own, uint32_t other, int lane, int warp) {
  const int low = lane % 8 + lane / 8 % 2 * 8;
  const int high = lane / 16 * 8;
  const uint32_t a_lane = own + (warp * 16 + low) * STRIDE + high * 2;
  const uint32_t b_lane = other + (lane % 8 + high) * STRIDE + lane / 8 % 2 * 16;
#pragma unroll
  for (int k = 0; k < WIDTH / 16; ++k) {
    uint32_t a[4];
    load_matrices(a, a_lane + k * 32);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t b[4];
      load_matrices(b, b_lane + j * 8 * STRIDE + k * 32);
      mma_16816(c[j], a, b[0], b[1]);
      mma_16816(c[j + 1], a, b[2], b[3]);
    }
  }
}

// c (16 x WIDTH) += weights (16 x 64) times rows (64 x WIDTH).
template <int WIDTH, int STRIDE>
__device__ inline void add_weighted(float (&c)[WIDTH / 8][4], const uint32_t (&weights)[4][4], uint32_t rows,
                                    int lane) {
  const int low = lane % 8 + lane / 8 % 2 * 8;
  const int high = lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, rows + (k * 16 + low) * STRIDE + (j * 8 + high) * 2);
      mma_16816(c[j], weights[k], b[0], b[1]);
      mma_16816(c[j + 1], weights[k], b[2], b[3]);
    }
  }
}

template <int WIDTH>
__device__ inline void store_rows(const float (&c)[WIDTH / 8][4], float* out, int64_t stride, int first,
                                  int rows, int lane, int warp) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + warp * 16 + half * 8 + lane / 4;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; ++j) {
      *reinterpret_cast<float2*>(out + row * stride + j * 8 + lane % 4 * 2) = {c[j][half * 2],
                                                                               c[j][half * 2 + 1]};
    }
  }
}

template <int D, int V>
__global__ void __launch_bounds__(kTileThreads) backward_keys_kernel(const AttentionBackwardArgs p) {
  using L = TileLayout<D, V>;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  auto* stats = reinterpret_cast<float*>(shared + L::kStats);
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const AttentionBackwardTile tile = p.tiles[blockIdx.y];
  const int kv_head = blockIdx.z;
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  const int query_tiles = (tile.num_rows - tile.tile_begin + kTileRows - 1) / kTileRows;
  const int loop = query_tiles * heads_per_kv;
  const int64_t first_row = tile.row_begin;

  load_tile<D, L::kD>(p.k + first_row * p.k_stride + kv_head * D, p.k_stride, tile.tile_begin, tile.num_rows,
                      base, tid);
  load_tile<V, L::kV>(p.v + first_row * p.v_stride + kv_head * V, p.v_stride, tile.tile_begin, tile.num_rows,
                      base + L::kSecond, tid);
  const auto issue = [&](int t) {
    if (t < loop) {
      const int head = kv_head * heads_per_kv + t / query_tiles;
      const int begin = tile.tile_begin + t % query_tiles * kTileRows;
      const uint32_t to = base + L::kPair * (1 + t % 2);
      load_tile<D, L::kD>(p.q + first_row * p.q_stride + head * D, p.q_stride, begin, tile.num_rows, to, tid);
      load_tile<V, L::kV>(p.dout + first_row * p.dout_stride + head * V, p.dout_stride, begin, tile.num_rows,
                          to + L::kSecond, tid);
      if (tid < kTileRows) {
        const bool valid = begin + tid < tile.num_rows;
        const int64_t at = (first_row + begin + tid) * p.dims.num_heads + head;
        stats[t % 2 * 2 * kTileRows + tid] = valid ? p.lse[at] : 0.0F;
        stats[(t % 2 * 2 + 1) * kTileRows + tid] = valid ? p.delta[at] : 0.0F;
      }
    }
    copy_commit();
  };
  issue(0);
  float dk[D / 8][4] = {};
  float dv[V / 8][4] = {};
  for (int t = 0; t < loop; ++t) {
    __syncthreads();  // the other stage is no longer read
    issue(t + 1);
    copy_wait<1>();
    __syncthreads();
    const uint32_t stage = base + L::kPair * (1 + t % 2);
    const float* lse = stats + t % 2 * 2 * kTileRows;
    const float* delta = lse + kTileRows;
    const int begin = tile.tile_begin + t % query_tiles * kTileRows;
    float s[8][4] = {};
    float dp[8][4] = {};
    multiply_rows<D, L::kD>(s, base, stage, lane, warp);
    multiply_rows<V, L::kV>(dp, base + L::kSecond, stage + L::kSecond, lane, warp);
    uint32_t weights[4][4];
    uint32_t gradients[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float w[2];
        float g[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int query = j * 8 + lane % 4 * 2 + e;
          const int key_row = tile.tile_begin + warp * 16 + half * 8 + lane / 4;
          const bool seen = key_row <= begin + query && begin + query < tile.num_rows;
          const float weight = exp_scalar(s[j][half * 2 + e] * p.dims.scale - lse[query]);
          const float gradient = (weight * (dp[j][half * 2 + e] - delta[query])) * p.dims.scale;
          w[e] = seen ? weight : 0.0F;
          g[e] = seen ? gradient : 0.0F;
        }
        weights[j / 2][j % 2 * 2 + half] = bf16_pair(w[0], w[1]);
        gradients[j / 2][j % 2 * 2 + half] = bf16_pair(g[0], g[1]);
      }
    }
    add_weighted<V, L::kV>(dv, weights, stage + L::kSecond, lane);
    add_weighted<D, L::kD>(dk, gradients, stage, lane);
  }
  const int64_t heads = p.dims.num_kv_heads;
  store_rows<D>(dk, p.dk + (first_row * heads + kv_head) * D, heads * D, tile.tile_begin, tile.num_rows, lane,
                warp);
  store_rows<V>(dv, p.dv + (first_row * heads + kv_head) * V, heads * V, tile.tile_begin, tile.num_rows, lane,
                warp);
}

template <int D, int V>
__global__ void __launch_bounds__(kTileThreads) backward_queries_kernel(const AttentionBackwardArgs p) {
  using L = TileLayout<D, V>;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const AttentionBackwardTile tile = p.tiles[gridDim.y - 1 - blockIdx.y];  // the longest loops first
  const int head = blockIdx.z;
  const int kv_head = head / (p.dims.num_heads / p.dims.num_kv_heads);
  const int loop = tile.tile_begin / kTileRows + 1;
  const int64_t first_row = tile.row_begin;

  load_tile<D, L::kD>(p.q + first_row * p.q_stride + head * D, p.q_stride, tile.tile_begin, tile.num_rows,
                      base, tid);
  load_tile<V, L::kV>(p.dout + first_row * p.dout_stride + head * V, p.dout_stride, tile.tile_begin,
                      tile.num_rows, base + L::kSecond, tid);
  const auto issue = [&](int t) {
    if (t < loop) {
      const uint32_t to = base + L::kPair * (1 + t % 2);
      load_tile<D, L::kD>(p.k + first_row * p.k_stride + kv_head * D, p.k_stride, t * kTileRows,
                          tile.num_rows, to, tid);
      load_tile<V, L::kV>(p.v + first_row * p.v_stride + kv_head * V, p.v_stride, t * kTileRows,
                          tile.num_rows, to + L::kSecond, tid);
    }
    copy_commit();
  };
  issue(0);
  float lse[2];
  float delta[2];
  int row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    row[half] = tile.tile_begin + warp * 16 + half * 8 + lane / 4;
    const bool valid = row[half] < tile.num_rows;
    const int64_t at = (first_row + row[half]) * p.dims.num_heads + head;
    lse[half] = valid ? p.lse[at] : 0.0F;
    delta[half] = valid ? p.delta[at] : 0.0F;
  }
  float dq[D / 8][4] = {};
  for (int t = 0; t < loop; ++t) {
    __syncthreads();  // the other stage is no longer read
    issue(t + 1);
    copy_wait<1>();
    __syncthreads();
    const uint32_t stage = base + L::kPair * (1 + t % 2);
    float s[8][4] = {};
    float dp[8][4] = {};
    multiply_rows<D, L::kD>(s, base, stage, lane, warp);
    multiply_rows<V, L::kV>(dp, base + L::kSecond, stage + L::kSecond, lane, warp);
    uint32_t gradients[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float g[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key_row = t * kTileRows + j * 8 + lane % 4 * 2 + e;
          const bool seen = key_row <= row[half] && row[half] < tile.num_rows;
          const float weight = exp_scalar(s[j][half * 2 + e] * p.dims.scale - lse[half]);
          const float gradient = (weight * (dp[j][half * 2 + e] - delta[half])) * p.dims.scale;
          g[e] = seen ? gradient : 0.0F;
        }
        gradients[j / 2][j % 2 * 2 + half] = bf16_pair(g[0], g[1]);
      }
    }
    add_weighted<D, L::kD>(dq, gradients, stage, lane);
  }
  const int64_t heads = p.dims.num_heads;
  store_rows<D>(dq, p.dq + (first_row * heads + head) * D, heads * D, tile.tile_begin, tile.num_rows, lane,
                warp);
}

template <int D, int V>
void launch_backward_tiles(const AttentionBackwardArgs& args, StreamHandle stream) {
  constexpr int kShared = TileLayout<D, V>::kBytes;
  const auto keys = backward_keys_kernel<D, V>;
  const auto queries = backward_queries_kernel<D, V>;
  cudaFuncSetAttribute(keys, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  cudaFuncSetAttribute(queries, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const auto tiles = static_cast<unsigned>(args.num_tiles);
  keys<<<dim3(1, tiles, static_cast<unsigned>(args.dims.num_kv_heads)), kTileThreads, kShared, stream>>>(
      args);
  check_launch("attention_backward keys");
  queries<<<dim3(1, tiles, static_cast<unsigned>(args.dims.num_heads)), kTileThreads, kShared, stream>>>(
      args);
  check_launch("attention_backward queries");
}

}  // namespace accord::kernels::cuda
