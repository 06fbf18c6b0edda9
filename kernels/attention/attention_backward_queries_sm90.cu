// Gradients of queries on Hopper (attention_backward.hpp has the formulas). Blocks take tile after tile of
// 128 queries of one head, which stay in registers with their output gradients; over key tiles ascending:
//   s = q k^T, dp = do v^T, then dq += ds k     ds from registers
#include "kernels/attention/attention_backward_sm90.cuh"

namespace accord::kernels::cuda::attention {
namespace {

constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

// Tiles from the last, which has the longest loop of those of a sequence, all heads of each; every other
// round in reverse.
struct Work {
  AttentionBackwardTile tile;
  int head;
  int loop;  // key tiles
};
__device__ inline bool get_work(const AttentionBackwardArgs& p, int round, Work& work) {
  const int turn = static_cast<int>(round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  const int item = round * static_cast<int>(gridDim.x) + turn;
  if (item >= p.num_tiles * p.dims.num_heads) return false;
  work.tile = p.tiles[p.num_tiles - 1 - item / p.dims.num_heads];
  work.head = item % p.dims.num_heads;
  const int last_row = min(work.tile.tile_begin + kOwnRows, work.tile.num_rows) - 1;
  // The second half of a tile's rows has an entry of its own in the list, which is left out.
  work.loop = work.tile.tile_begin % kOwnRows == 0 ? last_row / kGroupRows + 1 : 0;
  return true;
}

template <int D>
__device__ inline void produce(const AttentionBackwardArgs& p, uint32_t base) {
  using L = BackwardLayout<D>;
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  uint32_t at = 0;
  uint32_t done = 0;
  Work work;
  for (int round = 0; get_work(p, round, work); ++round) {
    if (work.loop == 0) continue;
    const int64_t sequence = work.tile.row_begin;
    const int rows = work.tile.num_rows;
    const int kv_head = work.head / heads_per_kv;
    barrier_wait(L::own_empty(base), (done++ & 1) ^ 1);
    copy_rows<D, kOwnRows>(p.q + sequence * p.q_stride + work.head * D, p.q_stride, work.tile.tile_begin,
                           rows, base + L::kOwn);
    copy_rows<D, kOwnRows>(p.dout + sequence * p.dout_stride + work.head * D, p.dout_stride,
                           work.tile.tile_begin, rows, base + L::kOwn + L::kOwnOperand);
    barrier_arrive_copied(L::own_full(base));
    const BF16* const k = p.k + sequence * p.k_stride + kv_head * D;
    const BF16* const v = p.v + sequence * p.v_stride + kv_head * D;
    for (int i = 0; i < work.loop; ++i, ++at) {
      barrier_wait(L::empty(base, at), L::phase(at) ^ 1);
      copy_rows<D, kGroupRows>(k, p.k_stride, i * kGroupRows, rows, L::stage(base, at));
      copy_rows<D, kGroupRows>(v, p.v_stride, i * kGroupRows, rows, L::stage(base, at) + L::kOperand);
      barrier_arrive_copied(L::full(base, at));
    }
  }
}

// Element 4 j + 2 half + e has query 8 half + lane / 4 of the warp's 16 and key 8 j + 2 quad + e.
__device__ inline void weigh_queries(float (&s)[32], const float (&lse)[2], float scale) {
#pragma unroll
  for (int i = 0; i < 32; ++i) s[i] = exp_below(s[i] * scale - lse[i % 4 / 2]);
}

template <bool DIAGONAL>
__device__ inline void differentiate_queries(const float (&s)[32], const float (&dp)[32],
                                             uint32_t (&gradients)[4][4], const float (&delta)[2],
                                             float scale) {
  const int lane = threadIdx.x % 32;
  const int query = threadIdx.x % kGroupThreads / 32 * 16 + lane / 4;
  const int key = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * j + 2 * half;
      float x = (s[i] * (dp[i] - delta[half])) * scale;
      float y = (s[i + 1] * (dp[i + 1] - delta[half])) * scale;
      if constexpr (DIAGONAL) {
        if (j * 8 + key > query + half * 8) x = 0.0F;
        if (j * 8 + key + 1 > query + half * 8) y = 0.0F;
      }
      gradients[j / 2][j % 2 * 2 + half] = gpu::pack_bf16(x, y);
    }
  }
}

template <int D>
__device__ inline void load_own(uint32_t (&x)[D / 16][4], uint32_t from) {
  const int lane = threadIdx.x % 32;
  const int row = (static_cast<int>(threadIdx.x) - kGroupThreads) / 32 * 16 + lane % 16;
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    const int chunk = d % 4 * 2 + lane / 16;
    load_matrices(x[d], from + d / 4 * BackwardLayout<D>::kOwnBlock + row * 128 + (chunk ^ (row % 8)) * 16);
  }
}

template <int D>
__device__ inline void consume(const AttentionBackwardArgs& p, uint32_t base) {
  using L = BackwardLayout<D>;
  const int lane = threadIdx.x % 32;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  if (group == 1) pass_turn(group);
  uint32_t at = 0;
  uint32_t taken = 0;
  Work work;
  for (int round = 0; get_work(p, round, work); ++round) {
    if (work.loop == 0) continue;
    const int first_row = work.tile.tile_begin + group * kGroupRows;
    const int rows = work.tile.num_rows;
    const int64_t sequence = work.tile.row_begin;
    float lse[2];
    float delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + threadIdx.x % kGroupThreads / 32 * 16 + half * 8 + lane / 4;
      const int64_t index = (sequence + row) * p.dims.num_heads + work.head;
      lse[half] = row < rows ? p.lse[index] : 0.0F;
      delta[half] = row < rows ? p.delta[index] : 0.0F;
    }
    uint32_t q[D / 16][4];
    uint32_t dout[D / 16][4];
    barrier_wait(L::own_full(base), taken++ & 1);
    load_own<D>(q, base + L::kOwn);
    load_own<D>(dout, base + L::kOwn + L::kOwnOperand);
    __syncwarp();
    if (lane == 0) barrier_arrive(L::own_empty(base));

    // The tiles that this warpgroup sees; its own is the last of them.
    const int loop = first_row < rows ? first_row / kGroupRows + 1 : 0;
    float dq[D / 2];
    float s[32];
    float dp[32];
    uint32_t gradients[4][4];
    const auto products = [&](int t) {
      const uint64_t keys = operand_descriptor(L::stage(base, at + t));
      const uint64_t values = operand_descriptor(L::stage(base, at + t) + L::kOperand);
#pragma unroll
      for (int d = 0; d < D / 16; ++d) multiply<0>(s, q[d], along<kBlockBytes>(keys, d), d > 0);
      wgmma_commit();
#pragma unroll
      for (int d = 0; d < D / 16; ++d) multiply<0>(dp, dout[d], along<kBlockBytes>(values, d), d > 0);
      wgmma_commit();
    };
    const auto add_keys = [&](int t) {
      const uint64_t keys = operand_descriptor(L::stage(base, at + t));
#pragma unroll
      for (int kk = 0; kk < kGroupRows / 16; ++kk) {
        multiply<1>(dq, gradients[kk], across(keys, kk), kk > 0 || t > 0);
      }
      wgmma_commit();
    };
    if (loop > 0) {
      wait_stage<D>(base, at);
      take_turn(group);
      wgmma_fence();
      products(0);
      pass_turn(group);
      wgmma_wait<1>();
      int t = 0;
      while (true) {
        hold_accumulators(s);
        weigh_queries(s, lse, p.dims.scale);
        hold_accumulators(s);  // while dp is on its way
        wgmma_wait<0>();
        hold_accumulators(dp);
        if (t + 1 == loop) {
          differentiate_queries<true>(s, dp, gradients, delta, p.dims.scale);
        } else {
          differentiate_queries<false>(s, dp, gradients, delta, p.dims.scale);
        }
        if (++t == loop) break;
        wait_stage<D>(base, at + t);
        take_turn(group);
        wgmma_fence();
        add_keys(t - 1);
        products(t);
        pass_turn(group);
        wgmma_wait<1>();
        hold_accumulators(dq);
        hold_operands(gradients);
        release<D>(base, at + t - 1);
      }
      wgmma_fence();
      add_keys(loop - 1);
      wgmma_wait<0>();
      hold_accumulators(dq);
      release<D>(base, at + loop - 1);
    }
    for (int t = loop; t < work.loop; ++t) {  // the other warpgroup's alone
      wait_stage<D>(base, at + t);
      take_turn(group);
      pass_turn(group);
      release<D>(base, at + t);
    }
    at += work.loop;
    if (loop > 0) {
      const int64_t stride = int64_t{p.dims.num_heads} * D;
      store_rows_of_group<D>(dq, p.dq + sequence * stride + work.head * D, stride, first_row, rows);
    }
  }
}

template <int D>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_queries_sm90_kernel(const AttentionBackwardArgs p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = (shared_address(shared) + 1023u) & ~1023u;
  BackwardLayout<D>::init(base);
  if (threadIdx.x < kGroupThreads) {
    give_registers<kProducerRegisters>();
    produce<D>(p, base);
  } else {
    take_registers<kConsumerRegisters>();
    consume<D>(p, base);
  }
}

template <int D>
void launch(const AttentionBackwardArgs& args, StreamHandle stream) {
  const auto kernel = backward_queries_sm90_kernel<D>;
  constexpr int kShared = BackwardLayout<D>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const int64_t items = int64_t{args.num_tiles} * args.dims.num_heads;
  kernel<<<gpu::strided_grid(items, 1), kBackwardThreads, kShared, stream>>>(args);
  check_launch("attention_backward queries sm90");
}

}  // namespace

void launch_backward_queries_sm90(const AttentionBackwardArgs& args, StreamHandle stream) {
  if (args.dims.head_dim == 64) return launch<64>(args, stream);
  launch<128>(args, stream);
}

}  // namespace accord::kernels::cuda::attention
