// Gradients of keys and values on Hopper (attention_backward.hpp has the formulas). A block owns 128 keys of
// one key/value head; over its heads and query tiles, both ascending:
//   s^T = k q^T, dp^T = v do^T       own rows from shared memory
//   dv += p^T do, dk += ds^T q       p^T and ds^T from registers
// A warpgroup's dk, and s and dp of its next tile, run while the other one computes p and ds.
#include "kernels/attention/attention_backward_sm90.cuh"

namespace accord::kernels::cuda::attention {
namespace {

constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

template <int D>
__device__ inline void produce(const AttentionBackwardArgs& p, const AttentionBackwardTile& tile, int kv_head,
                               int query_tiles, uint32_t base) {
  using L = BackwardLayout<D>;
  const int64_t sequence = tile.row_begin;
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  copy_rows<D, kOwnRows>(p.k + sequence * p.k_stride + kv_head * D, p.k_stride, tile.tile_begin,
                         tile.num_rows, base + L::kOwn);
  copy_rows<D, kOwnRows>(p.v + sequence * p.v_stride + kv_head * D, p.v_stride, tile.tile_begin,
                         tile.num_rows, base + L::kOwn + L::kOwnOperand);
  copy_commit();
  copy_wait<0>();
  fence_async_proxy();
  barrier_arrive(L::own_full(base));
  uint32_t at = 0;
  for (int head = kv_head * heads_per_kv; head < (kv_head + 1) * heads_per_kv; ++head) {
    const BF16* const q = p.q + sequence * p.q_stride + head * D;
    const BF16* const dout = p.dout + sequence * p.dout_stride + head * D;
    for (int i = 0; i < query_tiles; ++i, ++at) {
      const int begin = tile.tile_begin + i * kGroupRows;
      barrier_wait(L::empty(base, at), L::phase(at) ^ 1);
      copy_rows<D, kGroupRows>(q, p.q_stride, begin, tile.num_rows, L::stage(base, at));
      copy_rows<D, kGroupRows>(dout, p.dout_stride, begin, tile.num_rows, L::stage(base, at) + L::kOperand);
      copy_stats<D>(p, sequence, head, begin, tile.num_rows, base + L::stats(at));
      copy_commit();
      copy_wait<1>();
      if (at > 0) announce<D>(base, at - 1);
    }
  }
  copy_wait<0>();
  announce<D>(base, at - 1);
}

// Of the transposed tile: element 4 j + 2 half + e has key 8 half + lane / 4 of the warp's 16 and query 8 j +
// 2 quad + e. s becomes p.
template <bool DIAGONAL>
__device__ inline void weigh_keys(float (&s)[32], uint32_t (&weights)[4][4], const float* lse, float scale) {
  const int lane = threadIdx.x % 32;
  const int key = threadIdx.x % kGroupThreads / 32 * 16 + lane / 4;
  const int query = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 from = *reinterpret_cast<const float2*>(lse + j * 8 + query);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const x = s + 4 * j + 2 * half;
      x[0] = exp_below(x[0] * scale - from.x);
      x[1] = exp_below(x[1] * scale - from.y);
      if constexpr (DIAGONAL) {
        if (key + half * 8 > j * 8 + query) x[0] = 0.0F;
        if (key + half * 8 > j * 8 + query + 1) x[1] = 0.0F;
      }
      weights[j / 2][j % 2 * 2 + half] = gpu::pack_bf16(x[0], x[1]);
    }
  }
}

template <bool DIAGONAL>
__device__ inline void differentiate_keys(const float (&s)[32], const float (&dp)[32],
                                          uint32_t (&gradients)[4][4], const float* delta, float scale) {
  const int lane = threadIdx.x % 32;
  const int key = threadIdx.x % kGroupThreads / 32 * 16 + lane / 4;
  const int query = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 from = *reinterpret_cast<const float2*>(delta + j * 8 + query);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * j + 2 * half;
      float x = (s[i] * (dp[i] - from.x)) * scale;
      float y = (s[i + 1] * (dp[i + 1] - from.y)) * scale;
      if constexpr (DIAGONAL) {
        if (key + half * 8 > j * 8 + query) x = 0.0F;
        if (key + half * 8 > j * 8 + query + 1) y = 0.0F;
      }
      gradients[j / 2][j % 2 * 2 + half] = gpu::pack_bf16(x, y);
    }
  }
}

template <int D>
__device__ inline void consume(const AttentionBackwardArgs& p, const AttentionBackwardTile& tile, int kv_head,
                               int query_tiles, uint32_t base, const unsigned char* shared) {
  using L = BackwardLayout<D>;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  const uint32_t loop = static_cast<uint32_t>(query_tiles * heads_per_kv);
  if (group == 1) pass_turn(group);
  const int first_key = tile.tile_begin + group * kGroupRows;
  if (first_key >= tile.num_rows) {
    for (uint32_t t = 0; t < loop; ++t) {
      wait_stage<D>(base, t);
      take_turn(group);
      pass_turn(group);
      release<D>(base, t);
    }
    return;
  }
  barrier_wait(L::own_full(base), 0);
  const uint32_t keys = uniform(descriptor_low(base + L::kOwn + group * kBlockBytes));
  const uint32_t values = keys + L::kOwnOperand / 16;
  float dk[D / 2] = {};
  float dv[D / 2] = {};
  float s[32];
  float dp[32];
  uint32_t weights[4][4];
  uint32_t gradients[4][4];

  // Tile t of the loop, tile `within` of its head; the second warpgroup sees nothing of the first.
  uint32_t t = 0;
  int within = 0;
  const auto skip_unseen = [&] {
    if (t < loop && within < group) {
      wait_stage<D>(base, t);
      take_turn(group);
      pass_turn(group);
      release<D>(base, t);
      ++t;
      ++within;
    }
  };
  uint32_t stage = 0;  // of tile t
  const auto score = [&] {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      multiply<0, 0>(s, along<L::kOwnBlock>(keys, d), along<kBlockBytes>(stage, d), d > 0);
    }
    wgmma_commit();
    const uint32_t douts = stage + L::kOperand / 16;
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      multiply<0, 0>(dp, along<L::kOwnBlock>(values, d), along<kBlockBytes>(douts, d), d > 0);
    }
    wgmma_commit();
  };
  const auto add_queries = [&](uint32_t queries) {
#pragma unroll
    for (int kk = 0; kk < kGroupRows / 16; ++kk) multiply<1>(dk, gradients[kk], across(queries, kk), true);
    wgmma_commit();
  };
  skip_unseen();
  stage = stage_descriptor<D>(base, t);
  wait_stage<D>(base, t);
  wgmma_fence();
  score();
  wgmma_wait<1>();
  uint32_t done = t;
  while (true) {
    const uint32_t douts = stage + L::kOperand / 16;
    const auto* const lse = reinterpret_cast<const float*>(shared + L::stats(t));
    const bool diagonal = within == group;
    hold_accumulators(s);
    if (diagonal) {
      weigh_keys<true>(s, weights, lse, p.dims.scale);
    } else {
      weigh_keys<false>(s, weights, lse, p.dims.scale);
    }
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kGroupRows / 16; ++kk) multiply<1>(dv, weights[kk], across(douts, kk), true);
    wgmma_commit();
    wgmma_wait<0>();  // dv's as well: ds takes the registers of its weights
    hold_accumulators(dp);
    hold_accumulators(dv);
    hold_operands(weights);
    if (diagonal) {
      differentiate_keys<true>(s, dp, gradients, lse + kGroupRows, p.dims.scale);
    } else {
      differentiate_keys<false>(s, dp, gradients, lse + kGroupRows, p.dims.scale);
    }
    ++t;
    if (++within == query_tiles) within = 0;
    skip_unseen();
    if (t >= loop) break;
    const uint32_t queries = stage;
    stage = stage_descriptor<D>(base, t);
    wait_stage<D>(base, t);
    take_turn(group);
    wgmma_fence();
    add_queries(queries);
    score();
    pass_turn(group);
    wgmma_wait<1>();
    hold_accumulators(dk);
    hold_operands(gradients);
    release<D>(base, done);
    done = t;
  }
  take_turn(group);
  wgmma_fence();
  add_queries(stage);
  pass_turn(group);
  wgmma_wait<0>();
  hold_accumulators(dk);
  const int64_t stride = int64_t{p.dims.num_kv_heads} * D;
  const int64_t at = tile.row_begin * stride + kv_head * D;
  store_rows_of_group<D>(dk, p.dk + at, stride, first_key, tile.num_rows);
  store_rows_of_group<D>(dv, p.dv + at, stride, first_key, tile.num_rows);
}

template <int D>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_keys_sm90_kernel(const AttentionBackwardArgs p) {
  using L = BackwardLayout<D>;
  extern __shared__ __align__(128) unsigned char shared[];
  const AttentionBackwardTile entry = p.tiles[blockIdx.y];
  const AttentionBackwardTile tile = {uniform(entry.row_begin), uniform(entry.num_rows),
                                      uniform(entry.tile_begin)};
  if (tile.tile_begin % kOwnRows != 0) return;  // part of the tile before
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + 1023u) & ~1023u;
  L::init(base, kGroupThreads);
  const int kv_head = static_cast<int>(blockIdx.x);
  const int query_tiles = (tile.num_rows - tile.tile_begin + kGroupRows - 1) / kGroupRows;
  if (threadIdx.x < kGroupThreads) {
    give_registers<kProducerRegisters>();
    produce<D>(p, tile, kv_head, query_tiles, base);
  } else {
    take_registers<kConsumerRegisters>();
    consume<D>(p, tile, kv_head, query_tiles, base, shared + (base - start));
  }
}

template <int D>
void launch(const AttentionBackwardArgs& args, StreamHandle stream) {
  const auto kernel = backward_keys_sm90_kernel<D>;
  constexpr int kShared = BackwardLayout<D>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const dim3 grid(static_cast<unsigned>(args.dims.num_kv_heads), static_cast<unsigned>(args.num_tiles));
  kernel<<<grid, kBackwardThreads, kShared, stream>>>(args);
  check_launch("attention_backward keys sm90");
}

}  // namespace

void launch_backward_sm90(const AttentionBackwardArgs& args, StreamHandle stream) {
  if (args.dims.head_dim == 64) {
    launch<64>(args, stream);
  } else {
    launch<128>(args, stream);
  }
  launch_backward_queries_sm90(args, stream);
}

}  // namespace accord::kernels::cuda::attention
