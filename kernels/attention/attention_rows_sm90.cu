// Attention of many rows on Hopper (attention_cuda.hpp has the order of every sum): head sizes 64 and 128,
// tiles of 128 queries. One block per multiprocessor takes tile after tile:
//   warpgroup 0     copies queries, and keys and values block by block, into a ring of kStages
//   warpgroups 1, 2 own 64 queries each, which stay in registers. Of key block b, in registers as well:
//                     scores = q k^T     issued with block b - 1's weights times values
//                     weights            the exponentials, while those products and the other group's run
// What earlier splits left (ACC) waits in shared memory, where each thread reads its own part once per 512
// keys. The order of additions is attention_rows_kernel's: wgmma's accumulators lie with a quad's lanes as
// mma.sync's do, and both add groups of 16 in ascending order.
#include <cmath>

#include "kernels/attention/attention_block.cuh"
#include "kernels/attention/attention_shapes.hpp"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/cuda/vector.cuh"

namespace accord::kernels::cuda::attention {
namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kQueriesEach = 64;
constexpr int kGroupThreads = 128;
constexpr int kRowsThreads = (1 + kConsumers) * kGroupThreads;
constexpr int kConsumerWarps = kConsumers * kWarps;
constexpr int kSplitBlocks = kSplit / kBlock;
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;

template <int D>
struct RingLayout {
  static constexpr int kStages = 4;
  static constexpr int kOperand = kBlock * D * 2;  // blocks of 64 columns (wgmma.cuh), one after the other
  static constexpr int kStage = 2 * kOperand;      // keys, values
  static constexpr int kQ = kStages * kStage;      // likewise, of 128 rows each
  static constexpr int kQueryBlock = kConsumers * kQueriesEach * 128;
  static constexpr int kMerged = kQ + D / 64 * kQueryBlock;
  static constexpr int kBarriers = kMerged + kConsumers * kQueriesEach * D * 4;
  static constexpr int kBytes = kBarriers + (2 * kStages + 2) * 8 + 1024;  // starts at a multiple of 1024
  __device__ static uint32_t full(uint32_t base, uint32_t stage) { return base + kBarriers + stage * 8; }
  __device__ static uint32_t empty(uint32_t base, uint32_t stage) {
    return base + kBarriers + (kStages + stage) * 8;
  }
  __device__ static uint32_t queries_full(uint32_t base) { return base + kBarriers + 2 * kStages * 8; }
  __device__ static uint32_t queries_empty(uint32_t base) { return queries_full(base) + 8; }
};

// The work: tile after tile, each for all its heads; every other round of blocks in reverse, so that none
// gets the longest of each.
struct Work {
  AttentionTile tile;
  int kv_head;
  int head0;
  int heads;
  int blocks;  // of keys
};

struct Schedule {
  int heads_per_kv;
  int heads_per_tile;
  int head_tiles;
  __device__ Schedule(const AttentionForward& p, int tile_heads)
      : heads_per_kv(p.dims.num_heads / p.dims.num_kv_heads),
        heads_per_tile(tile_heads),
        head_tiles((heads_per_kv + tile_heads - 1) / tile_heads) {}

  // The item of a round, or its tile's rows are 0: then later rounds have none either. Not yet uniform, so
  // that nothing waits for it here.
  struct Item {
    AttentionTile tile;
    int part;
  };
  __device__ Item fetch(const AttentionForward& p, int round) const {
    const int turn = static_cast<int>(round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    const int item = round * static_cast<int>(gridDim.x) + turn;
    const int per_tile = p.dims.num_kv_heads * head_tiles;
    if (item >= p.num_tiles * per_tile) return {};
    return {p.tiles[item / per_tile], item % per_tile};
  }
  __device__ Work work_of(const Item& item) const {
    Work work;
    work.tile = {uniform(item.tile.row_begin), uniform(item.tile.num_rows), uniform(item.tile.first_position),
                 uniform(item.tile.page_begin)};
    work.kv_head = item.part / head_tiles;
    work.head0 = item.part % head_tiles * heads_per_tile;
    work.heads = min(heads_per_tile, heads_per_kv - work.head0);
    const int context = work.tile.first_position + work.tile.num_rows;
    work.blocks = work.tile.num_rows == 0 ? 0 : (context + kBlock - 1) / kBlock;
    return work;
  }
  __device__ int row_in_tile(int query) const { return query / heads_per_tile; }
  __device__ bool valid(const Work& work, int query) const {
    return row_in_tile(query) < work.tile.num_rows && query % heads_per_tile < work.heads;
  }
  __device__ int head(const Work& work, int query) const {
    return work.kv_head * heads_per_kv + work.head0 + query % heads_per_tile;
  }
};

template <int D>
__device__ inline void produce(const AttentionForward& p, const Schedule& schedule, uint32_t base) {
  using L = RingLayout<D>;
  constexpr int kChunks = D / 8;                  // of 16 bytes in a row
  constexpr int kRows = kGroupThreads / kChunks;  // that all threads copy at once
  constexpr int kSteps = kBlock / kRows;
  constexpr int kStepsPerPage = kPage / kRows;
  const int tid = threadIdx.x;
  const int chunk = tid % kChunks;
  const int row0 = tid / kChunks;
  const uint32_t column = static_cast<uint32_t>((chunk % 8) ^ (row0 % 8)) * 16;  // kRows % 8 == 0
  const uint32_t to = base + chunk / 8 * kBlockBytes + row0 * 128 + column;
  const uint32_t to_query = base + L::kQ + chunk / 8 * L::kQueryBlock + row0 * 128 + column;
  uint32_t at = 0;  // blocks so far
  const auto k_bytes = static_cast<uint32_t>(p.k_stride * 2);
  const auto v_bytes = static_cast<uint32_t>(p.v_stride * 2);
  for (int round = 0;; ++round) {
    const Work work = schedule.work_of(schedule.fetch(p, round));
    if (work.blocks == 0) break;
    barrier_wait(L::queries_empty(base), (round & 1) ^ 1);
#pragma unroll 4
    for (int i = 0; i < kConsumers * kQueriesEach / kRows; ++i) {
      const int query = row0 + i * kRows;
      const bool valid = schedule.valid(work, query);
      const int64_t row = work.tile.row_begin + schedule.row_in_tile(query);
      const BF16* from =
          p.q + row * p.q_stride + static_cast<int64_t>(schedule.head(work, query)) * D + chunk * 8;
      copy_async<16>(to_query + i * kRows * 128, valid ? from : p.q, valid);
    }
    barrier_arrive_copied(L::queries_full(base));

    const int32_t* const table = p.pages + work.tile.page_begin;
    const int context = work.tile.first_position + work.tile.num_rows;
    const int column0 = work.kv_head * D + chunk * 8;
    const auto* const k = reinterpret_cast<const uint8_t*>(p.k + row0 * p.k_stride + column0);
    const auto* const v = reinterpret_cast<const uint8_t*>(p.v + row0 * p.v_stride + column0);
    BlockPages pages;
    pages.read(table, 0, context);
    for (int block = 0; block < work.blocks; ++block, ++at) {
      const uint32_t stage = at % L::kStages;
      barrier_wait(L::empty(base, stage), (at / L::kStages & 1) ^ 1);
      const int valid_rows = context - block * kBlock;
      const uint32_t destination = to + stage * L::kStage;
      const auto copy = [&](const uint8_t* data, uint32_t row_bytes, uint32_t shared, const auto& is_valid) {
#pragma unroll
        for (int i = 0; i < kSteps; i += kStepsPerPage) {
          const uint8_t* from =
              data + uint64_t{static_cast<uint32_t>(pages.first_row[i / kStepsPerPage])} * row_bytes;
#pragma unroll
          for (int j = 0; j < kStepsPerPage; ++j, from += kRows * row_bytes) {
            const bool valid = is_valid(row0 + (i + j) * kRows);
            copy_async<16>(shared + (i + j) * kRows * 128, valid ? static_cast<const void*>(from) : p.k,
                           valid);
          }
        }
      };
      const auto copy_both = [&](const auto& is_valid) {
        copy(k, k_bytes, destination, is_valid);
        copy(v, v_bytes, destination + L::kOperand, is_valid);
      };
      if (valid_rows >= kBlock) {
        copy_both([](int) { return true; });
      } else {
        copy_both([&](int row) { return row < valid_rows; });
      }
      barrier_arrive_copied(L::full(base, stage));
      pages.read(table, (block + 1) * kBlock, context);
    }
  }
}

// Of a thread's two query rows.
struct RowState {
  float max[2];
  float sum[2];
};

// Scores of a block become its weights (weigh() of attention_block.cuh, for N = 16, has the same sums). A row
// that has seen nothing, or NaN alone, has weights 0 or NaN, whatever the factor.
template <bool MASKED, bool EXACT_SCALE>
__device__ inline void weigh_rows(float (&s)[32], RowState& split, float (&factor)[2], float scale,
                                  const int (&last_column)[2], int quad) {
  constexpr int kChains = 4;
  float largest[2][kChains];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int column = i / 4 * 8 + quad * 2 + i % 2;
    const int half = i % 4 / 2;
    if constexpr (MASKED) s[i] = column <= last_column[half] ? s[i] : kMinusInfinity;
    float& max = largest[half][i / 4 % kChains];
    max = i / 4 < kChains && i % 2 == 0 ? s[i] : fmaxf(max, s[i]);  // of NaN alone: NaN, ignored below
  }
  float from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* const m = largest[half];
    from[half] = fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]));
  }
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const float other[2] = {__shfl_xor_sync(gpu::kFullMask, from[0], step),
                            __shfl_xor_sync(gpu::kFullMask, from[1], step)};
    from[0] = fmaxf(from[0], other[0]);
    from[1] = fmaxf(from[1], other[1]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float max = fmaxf(split.max[half], from[half] * scale);  // scaled: rounding keeps the order
    from[half] = max == kMinusInfinity ? 0.0F : max;
    factor[half] = exp_nonpositive(split.max[half] - from[half]);
    split.max[half] = max;
  }
  float sums[2][2];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int half = i % 4 / 2;
    // A power of two scales without rounding (where the product is subnormal, p is the same without).
    const float x = EXACT_SCALE ? fmaf(s[i], scale, -from[half]) : s[i] * scale - from[half];
    s[i] = exp_nonpositive(x);
    float& sum = sums[half][i / 16];
    sum = i % 16 < 4 && i % 2 == 0 ? s[i] : sum + s[i];
  }
  float sum[2] = {sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]};
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const float other[2] = {__shfl_xor_sync(gpu::kFullMask, sum[0], step),
                            __shfl_xor_sync(gpu::kFullMask, sum[1], step)};
    sum[0] = sum[0] + other[0];
    sum[1] = sum[1] + other[1];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    split.sum[half] = fmaf(split.sum[half], factor[half], sum[half]);
  }
}

template <int D, bool EXACT_SCALE>
__device__ inline void consume(const AttentionForward& p, const Schedule& schedule, uint32_t base,
                               float4* merged_of_block) {
  using L = RingLayout<D>;
  constexpr int kGroups = D / 8;  // of eight columns
  const int tid = threadIdx.x - kGroupThreads;
  const int lane = tid % 32;
  const int quad = lane % 4;
  const int group = tid / kGroupThreads;
  const int query0 = tid / 32 * 16 + lane / 4;  // and query0 + 8
  float4* const merged = merged_of_block + tid;
  constexpr int kMergedStride = kConsumers * kGroupThreads;
  const float scale = p.dims.scale;
  // Steps of 16 of an operand that starts at `descriptor`, whose low bits are an address in units of 16
  // bytes.
  const auto along = [](uint32_t descriptor, int step) {
    return descriptor + (step / 4 * kBlockBytes + step % 4 * 32) / 16;
  };
  const auto across = [](uint32_t descriptor, int step) { return descriptor + step * 2048 / 16; };
  if (group == 1) pass_turn(group);
  uint32_t at = 0;  // blocks so far
  Schedule::Item item = schedule.fetch(p, 0);
  for (int round = 0;; ++round) {
    const Work work = schedule.work_of(item);
    if (work.blocks == 0) break;
    uint32_t q[D / 16][4];
    barrier_wait(L::queries_full(base), round & 1);
    {
      const int row = tid / 32 * 16 + lane % 16;
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        const int chunk = d % 4 * 2 + lane / 16;
        load_matrices(q[d], base + L::kQ + d / 4 * L::kQueryBlock + row * 128 + (chunk ^ (row % 8)) * 16);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(L::queries_empty(base));

    // Blocks that some query of this warpgroup sees; those before `first_masked` all of them see whole.
    const int first_row = schedule.row_in_tile(group * kQueriesEach);
    const int last_row =
        min(schedule.row_in_tile(group * kQueriesEach + kQueriesEach - 1), work.tile.num_rows - 1);
    const int blocks = first_row <= last_row ? (work.tile.first_position + last_row) / kBlock + 1 : 0;
    const int first_masked = (work.tile.first_position + first_row + 1) / kBlock;
    int position[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      position[half] = work.tile.first_position + schedule.row_in_tile(query0 + half * 8);
    }

    float acc[D / 2];
    float s[32];
    uint32_t weights[4][4];
    float factor[2];
    RowState split = {{kMinusInfinity, kMinusInfinity}, {0.0F, 0.0F}};
    RowState whole = split;
    const auto arrived = [&](int block) {
      barrier_wait(L::full(base, (at + block) % L::kStages), (at + block) / L::kStages & 1);
      fence_async_proxy();  // the copies, for the tensor cores
    };
    const auto keys_of = [&](int block) {
      return uniform(descriptor_low(base + (at + block) % L::kStages * L::kStage));
    };
    const auto score = [&](uint32_t keys) {
#pragma unroll
      for (int d = 0; d < D / 16; ++d) multiply<0>(s, q[d], along(keys, d), d > 0);
      wgmma_commit();
    };
    const auto add_values = [&](uint32_t keys, bool add) {
      const uint32_t values = keys + L::kOperand / 16;
#pragma unroll
      for (int kk = 0; kk < kBlock / 16; ++kk) {
        multiply<1>(acc, weights[kk], across(values, kk), kk > 0 || add);
      }
      wgmma_commit();
    };
    const auto weigh_block = [&](int block) {
      const int last_column[2] = {position[0] - block * kBlock, position[1] - block * kBlock};
      if (block < first_masked) {
        weigh_rows<false, EXACT_SCALE>(s, split, factor, scale, last_column, quad);
      } else {
        weigh_rows<true, EXACT_SCALE>(s, split, factor, scale, last_column, quad);
      }
    };
    const auto pack_weights = [&] {
#pragma unroll
      for (int i = 0; i < 16; ++i) weights[i / 4][i % 4] = gpu::pack_bf16(s[2 * i], s[2 * i + 1]);
    };
    const auto release = [&](int block) {
      __syncwarp();
      if (lane == 0) barrier_arrive(L::empty(base, (at + block) % L::kStages));
    };
    // Splits up to that of `block`, merged: in acc, and in shared memory if more follow.
    const auto merge = [&](int block, const RowState& part, bool last) {
      const int begin = block / kSplitBlocks * kSplit;
      float old[2];
      float add[2];
      bool seen[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        seen[half] = position[half] >= begin;
        const float max = fmaxf(whole.max[half], part.max[half]);
        old[half] = exp_nonpositive(whole.max[half] - max);
        add[half] = exp_nonpositive(part.max[half] - max);
        if (seen[half]) {
          whole.sum[half] = fmaf(part.sum[half], add[half], whole.sum[half] * old[half]);
          whole.max[half] = max;
        }
      }
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const float4 before = begin == 0 ? float4{} : merged[j * kMergedStride];
        const float x[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          acc[4 * j + e] = seen[e / 2] ? fmaf(acc[4 * j + e], add[e / 2], x[e] * old[e / 2]) : x[e];
        }
        if (!last) {
          merged[j * kMergedStride] = {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
        }
      }
    };

    if (blocks > 0) {
      uint32_t keys = keys_of(0);
      arrived(0);
      take_turn(group);
      wgmma_fence();
      score(keys);
      pass_turn(group);
      wgmma_wait<0>();
      hold_accumulators(s);
      weigh_block(0);
      pack_weights();
      for (int block = 1; block < blocks; ++block) {
        const uint32_t before = keys;
        keys = keys_of(block);
        arrived(block);
        take_turn(group);
        wgmma_fence();
        score(keys);
        add_values(before, (block - 1) % kSplitBlocks != 0);
        pass_turn(group);
        wgmma_wait<1>();
        hold_accumulators(s);
        const bool starts = block % kSplitBlocks == 0;
        const RowState ended = split;
        if (starts) split = {{kMinusInfinity, kMinusInfinity}, {0.0F, 0.0F}};
        weigh_block(block);
        wgmma_wait<0>();
        hold_accumulators(acc);
        hold_operands(weights);
        release(block - 1);
        if (starts) {
          merge(block - 1, ended, false);
        } else {
#pragma unroll
          for (int i = 0; i < D / 2; ++i) acc[i] = acc[i] * factor[i % 4 / 2];
        }
        pack_weights();
      }
      wgmma_fence();
      add_values(keys, (blocks - 1) % kSplitBlocks != 0);
      wgmma_wait<0>();
      hold_accumulators(acc);
      hold_operands(weights);
      release(blocks - 1);
      merge(blocks - 1, split, true);
    }
    for (int block = blocks; block < work.blocks; ++block) {  // the other warpgroup's alone
      arrived(block);
      take_turn(group);
      pass_turn(group);
      release(block);
    }
    at += work.blocks;
    item = schedule.fetch(p, round + 1);

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = query0 + half * 8;
      if (!schedule.valid(work, query)) continue;
      const int64_t row = work.tile.row_begin + schedule.row_in_tile(query);
      const int64_t head = schedule.head(work, query);
      const float inverse = 1.0F / whole.sum[half];
      auto* out = reinterpret_cast<uint32_t*>(p.out + row * p.out_stride + head * D);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        out[j * 4 + quad] = gpu::pack_bf16(acc[4 * j + half * 2] * inverse + 0.0F,
                                           acc[4 * j + half * 2 + 1] * inverse + 0.0F);
      }
      if (quad == 0) p.lse[row * p.dims.num_heads + head] = whole.max[half] + log_scalar(whole.sum[half]);
    }
  }
}

template <int D, bool EXACT_SCALE>
__global__ void __launch_bounds__(kRowsThreads, 1)
    attention_rows_sm90_kernel(const AttentionForward p, int heads_per_tile) {
  using L = RingLayout<D>;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + 1023u) & ~1023u;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < L::kStages; ++stage) {
      barrier_init(L::full(base, stage), kGroupThreads);
      barrier_init(L::empty(base, stage), kConsumerWarps);
    }
    barrier_init(L::queries_full(base), kGroupThreads);
    barrier_init(L::queries_empty(base), kConsumerWarps);
  }
  __syncthreads();
  const Schedule schedule(p, heads_per_tile);
  if (threadIdx.x < kGroupThreads) {
    give_registers<kProducerRegisters>();
    produce<D>(p, schedule, base);
  } else {
    take_registers<kConsumerRegisters>();
    consume<D, EXACT_SCALE>(p, schedule, base,
                            reinterpret_cast<float4*>(shared + (base - start) + L::kMerged));
  }
}

template <int D, bool EXACT_SCALE>
void launch(const AttentionForward& args, StreamHandle stream) {
  using L = RingLayout<D>;
  const int heads = heads_per_tile(args.dims, kConsumers * kQueriesEach);
  const int group = args.dims.num_heads / args.dims.num_kv_heads;
  const int64_t items = int64_t{args.num_tiles} * args.dims.num_kv_heads * ((group + heads - 1) / heads);
  constexpr int64_t kMaxStride = int64_t{1} << 30;  // bytes of a row times rows at once: 32 bits
  require(args.k_stride < kMaxStride / 16 && args.v_stride < kMaxStride / 16,
          "args.k_stride < kMaxStride / 16 && args.v_stride < kMaxStride / 16");
  const auto kernel = attention_rows_sm90_kernel<D, EXACT_SCALE>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes);
  kernel<<<gpu::strided_grid(items, 1), kRowsThreads, L::kBytes, stream>>>(args, heads);
  check_launch("attention_forward rows sm90");
}

}  // namespace

void launch_rows_sm90(const AttentionForward& args, StreamHandle stream) {
  int exponent;
  const bool exact_scale = std::frexp(args.dims.scale, &exponent) == 0.5F;
  if (args.dims.head_dim == 128) return launch<128, false>(args, stream);
  if (exact_scale) return launch<64, true>(args, stream);
  launch<64, false>(args, stream);
}

}  // namespace accord::kernels::cuda::attention
