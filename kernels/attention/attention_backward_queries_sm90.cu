// Gradients of queries on Hopper (attention_backward.hpp has the formulas). Blocks take tile after tile of
// 128 queries of one head, which stay in registers with their output gradients; over key tiles ascending:
//   s = q k^T, dp = do v^T, then dq += ds k     ds from registers
#include "kernels/attention/attention_backward_sm90.cuh"

namespace accord::kernels::cuda::attention {
namespace {

constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

// What a block does next, from its producer to its consumers: through shared memory, in the phases of the own
// rows' barriers.
struct Work {
  AttentionBackwardTile tile;
  int head;
  int loop;  // key tiles; 0: the end
};

// The producer's walk: tiles from the last, which has the longest loop of those of a sequence, all heads of
// each; every other round of blocks in reverse, so that none gets the longest of each. The second half of a
// tile's rows has an entry of its own in the list, which is left out. All threads of a warp call next().
class Walk {
 public:
  __device__ explicit Walk(const AttentionBackwardArgs& args) : p(args) { read(); }

  __device__ Work next() {
    const int turn = static_cast<int>(round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    const int item = round++ * static_cast<int>(gridDim.x) + turn;
    const int rank = item / p.dims.num_heads;  // among the tiles that count
    while (first < p.num_tiles && rank >= before + __popc(counting)) {
      before += __popc(counting);
      first += 32;
      read();
    }
    Work work{{}, item % p.dims.num_heads, 0};
    if (first >= p.num_tiles) return work;
    work.tile = entry(first + static_cast<int>(__fns(counting, 0, rank - before + 1)));
    work.loop = (min(work.tile.tile_begin + kOwnRows, work.tile.num_rows) - 1) / kGroupRows + 1;
    return work;
  }

 private:
  __device__ AttentionBackwardTile entry(int i) const { return p.tiles[p.num_tiles - 1 - i]; }
  __device__ void read() {
    const int i = first + static_cast<int>(threadIdx.x) % 32;
    counting = __ballot_sync(gpu::kFullMask,
                             i < p.num_tiles && entry(min(i, p.num_tiles - 1)).tile_begin % kOwnRows == 0);
  }

  const AttentionBackwardArgs& p;
  int round = 0;
  int first = 0;   // of the 32 entries of `counting`
  int before = 0;  // tiles that count before them
  unsigned counting = 0;
};

template <int D>
__device__ inline void produce(const AttentionBackwardArgs& p, uint32_t base, Work* shared_work) {
  using L = BackwardLayout<D>;
  const int heads_per_kv = p.dims.num_heads / p.dims.num_kv_heads;
  uint32_t at = 0;
  Walk walk(p);
  for (uint32_t taken = 0;; ++taken) {
    const Work work = walk.next();
    barrier_wait(L::own_empty(base), (taken & 1) ^ 1);
    if (threadIdx.x == 0) {
      *shared_work = work;
      barrier_arrive(L::own_full(base));
    }
    if (work.loop == 0) {
      barrier_arrive(L::own_full(base));
      break;
    }
    const int64_t sequence = work.tile.row_begin;
    const int rows = work.tile.num_rows;
    const int kv_head = work.head / heads_per_kv;
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
      copy_commit();
      copy_wait<1>();
      if (at > 0) announce<D>(base, at - 1);
    }
  }
  copy_wait<0>();
  if (at > 0) announce<D>(base, at - 1);
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
__device__ inline void consume(const AttentionBackwardArgs& p, uint32_t base, const Work* shared_work) {
  using L = BackwardLayout<D>;
  const int lane = threadIdx.x % 32;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  if (group == 1) pass_turn(group);
  uint32_t at = 0;
  for (uint32_t taken = 0;; ++taken) {
    barrier_wait(L::own_full(base), taken & 1);
    const Work work = {{uniform(shared_work->tile.row_begin), uniform(shared_work->tile.num_rows),
                        uniform(shared_work->tile.tile_begin)},
                       uniform(shared_work->head),
                       uniform(shared_work->loop)};
    if (work.loop == 0) return;
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
    uint32_t stage = 0;  // of tile t
    const auto products = [&] {
#pragma unroll
      for (int d = 0; d < D / 16; ++d) multiply<0>(s, q[d], along<kBlockBytes>(stage, d), d > 0);
      wgmma_commit();
      const uint32_t values = stage + L::kOperand / 16;
#pragma unroll
      for (int d = 0; d < D / 16; ++d) multiply<0>(dp, dout[d], along<kBlockBytes>(values, d), d > 0);
      wgmma_commit();
    };
    const auto add_keys = [&](uint32_t keys, bool add) {
#pragma unroll
      for (int kk = 0; kk < kGroupRows / 16; ++kk) {
        multiply<1>(dq, gradients[kk], across(keys, kk), kk > 0 || add);
      }
      wgmma_commit();
    };
    if (loop > 0) {
      stage = stage_descriptor<D>(base, at);
      wait_stage<D>(base, at);
      take_turn(group);
      wgmma_fence();
      products();
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
        const uint32_t keys = stage;
        stage = stage_descriptor<D>(base, at + t);
        wait_stage<D>(base, at + t);
        take_turn(group);
        wgmma_fence();
        add_keys(keys, t > 1);
        products();
        pass_turn(group);
        wgmma_wait<1>();
        hold_accumulators(dq);
        hold_operands(gradients);
        release<D>(base, at + t - 1);
      }
      wgmma_fence();
      add_keys(stage, loop > 1);
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
  __shared__ Work work;
  const uint32_t base = (shared_address(shared) + 1023u) & ~1023u;
  BackwardLayout<D>::init(base, kGroupThreads + 1);
  if (threadIdx.x < kGroupThreads) {
    give_registers<kProducerRegisters>();
    produce<D>(p, base, &work);
  } else {
    take_registers<kConsumerRegisters>();
    consume<D>(p, base, &work);
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
