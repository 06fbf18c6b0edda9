// One block draws a row's token (rollout/sampler.hpp has the definition): logits [rows, vocab] fp32.
//
// Weights become integers q = round(exp(z - max) * 2^40), whose sums have no order; so the histograms of the
// radix selections may be filled by integer atomics in shared memory, and thread counts never change a
// result. A cut is a key (the order of logits as integers) with the last id kept among the logits of that
// very key.
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/softmax.cuh"
#include "kernels/sampler/sampler_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::kFullMask;
using gpu::kWarp;

constexpr int kThreads = gpu::kSoftmaxThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRadixSize = 2048;
constexpr int kParts = 3;
constexpr int kPartBits = 14;
static_assert(kMaxDrawVocab * ((int64_t{1} << kPartBits) - 1) < int64_t{1} << 32);
constexpr int kBinsPerThread = kRadixSize / kThreads;
constexpr int kNoId = 0x7fffffff;
constexpr int kGroups = 96;

struct Shared {
  union {
    gpu::SoftmaxStorage<false> softmax;
    // Sums of 14-bit parts of weights, each within 32 bits: what shared memory adds fast.
    uint32_t histogram[kParts][kRadixSize];
  };
  uint64_t warps[kWarps];
  uint64_t found[2];
  // Masses of the whole row by groups of tiles, a share a warp.
  uint64_t groups[kGroups][kWarps];
};

// What of a row may be drawn: keys above `key`, and of those equal to it the ids up to `last_id`.
struct Cut {
  uint32_t key = 0;
  int last_id = kNoId;

  __device__ bool keeps(uint32_t k, int id) const { return k > key || (k == key && id <= last_id); }
};

// round(w * 2^40): adding 2^52 leaves the integer in the low bits of the double.
__device__ inline uint64_t mass_of(float w) {
  const double shifted = static_cast<double>(w) * 0x1p40 + 0x1p52;
  return static_cast<uint64_t>(__double_as_longlong(shifted) - __double_as_longlong(0x1p52));
}

struct Row {
  const float* logits;
  int vocab;
  float temperature;
  float max;
  Cut top_k;
  Cut top_p;

  // Ascending with the logit; -0 and +0 are one value.
  __device__ uint32_t key(int id) const {
    const uint32_t bits = __float_as_uint(logits[id] + 0.0F);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  __device__ uint64_t whole_mass(int id) const {
    return mass_of(exp_scalar(gpu::tempered(logits[id], temperature) - max));
  }
  __device__ uint64_t mass(int id) const {
    const uint32_t k = key(id);
    return top_k.keeps(k, id) && top_p.keeps(k, id) ? whole_mass(id) : 0;
  }
};

// Over the block; every thread gets it.
__device__ inline uint64_t block_sum(uint64_t v, Shared& shared) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    v += __shfl_xor_sync(kFullMask, v, offset);
  }
  if (threadIdx.x % kWarp == 0) {
    shared.warps[threadIdx.x / kWarp] = v;
  }
  __syncthreads();
  uint64_t sum = 0;
  for (int i = 0; i < kWarps; ++i) {
    sum += shared.warps[i];
  }
  __syncthreads();
  return sum;
}

__device__ inline uint64_t block_max(uint64_t v, Shared& shared) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kFullMask, v, offset);
    v = other > v ? other : v;
  }
  if (threadIdx.x % kWarp == 0) {
    shared.warps[threadIdx.x / kWarp] = v;
  }
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) {
    v = shared.warps[i] > v ? shared.warps[i] : v;
  }
  __syncthreads();
  return v;
}

// The sum of v over the threads before this one.
__device__ inline uint64_t sum_before(uint64_t v, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint64_t inclusive = v;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const uint64_t other = __shfl_up_sync(kFullMask, inclusive, static_cast<unsigned>(offset));
    inclusive += lane >= offset ? other : 0;
  }
  if (lane == kWarp - 1) {
    shared.warps[warp] = inclusive;
  }
  __syncthreads();
  uint64_t before = inclusive - v;
  for (int i = 0; i < warp; ++i) {
    before += shared.warps[i];
  }
  __syncthreads();
  return before;
}

__device__ inline uint64_t weight_of_bin(const Shared& shared, int bin) {
  uint64_t sum = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    sum += static_cast<uint64_t>(shared.histogram[part][bin]) << (part * kPartBits);
  }
  return sum;
}

// The smallest set of largest keys whose weights sum to at least `need` (at most the sum of all): radix
// passes of 11, 11 and 10 bits from the top.
template <class Weight>
__device__ inline Cut select_cut(const Row& row, uint64_t need, Shared& shared, Weight weight) {
  uint32_t prefix = 0;
  uint32_t mask = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
    const uint32_t digits = pass == 2 ? 0x3ffu : 0x7ffu;
    for (int i = static_cast<int>(threadIdx.x); i < kParts * kRadixSize; i += kThreads) {
      shared.histogram[i / kRadixSize][i % kRadixSize] = 0;
    }
    __syncthreads();
    gpu::for_my_logits(row.logits, row.vocab, [&](int64_t id, float) {
      const uint32_t k = row.key(static_cast<int>(id));
      if ((k & mask) == prefix) {
        const uint64_t w = weight(static_cast<int>(id));
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const auto bits = static_cast<uint32_t>(w >> (part * kPartBits)) & ((1u << kPartBits) - 1);
          if (bits != 0) {
            atomicAdd(&shared.histogram[part][(k >> shift) & digits], bits);
          }
        }
      }
    });
    __syncthreads();
    // Bins from the top: this thread's are top, top - 1, ...
    const int top = kRadixSize - 1 - static_cast<int>(threadIdx.x) * kBinsPerThread;
    uint64_t mine = 0;
    for (int i = 0; i < kBinsPerThread; ++i) {
      mine += weight_of_bin(shared, top - i);
    }
    uint64_t before = sum_before(mine, shared);
    if (before < need && need <= before + mine) {
      int bin = top;
      while (before + weight_of_bin(shared, bin) < need) {
        before += weight_of_bin(shared, bin);
        --bin;
      }
      shared.found[0] = static_cast<uint64_t>(bin);
      shared.found[1] = need - before;
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(shared.found[0]) << shift;
    mask |= digits << shift;
    need = shared.found[1];
    __syncthreads();
  }
  // The ids with this key weigh the same, or nothing from some id on. Nearly always all of them are needed.
  uint64_t my_weight = 0;
  uint64_t my_ids = 0;
  gpu::for_my_logits(row.logits, row.vocab, [&](int64_t id, float) {
    const uint64_t w = row.key(static_cast<int>(id)) == prefix ? weight(static_cast<int>(id)) : 0;
    my_weight += w;
    my_ids += w != 0 ? 1 : 0;
  });
  const uint64_t ids = block_sum(my_ids, shared);
  const uint64_t each = block_sum(my_weight, shared) / ids;
  if ((need + each - 1) / each >= ids) {
    return {prefix, kNoId};
  }
  // Otherwise those up to the first, in ascending order, at which their weights reach what is needed.
  const auto in_key = [&](int id) { return id < row.vocab && row.key(id) == prefix ? weight(id) : 0; };
  uint64_t reached = 0;
  for (int begin = 0; begin < row.vocab; begin += kThreads) {
    const int id = begin + static_cast<int>(threadIdx.x);
    const uint64_t mine = in_key(id);
    const uint64_t before = reached + sum_before(mine, shared);
    if (before < need && need <= before + mine) {
      shared.found[0] = static_cast<uint64_t>(id);
    }
    reached += block_sum(mine, shared);
    if (reached >= need) {
      break;
    }
  }
  __syncthreads();
  const Cut cut{prefix, static_cast<int>(shared.found[0])};
  __syncthreads();
  return cut;
}

// ceil(p * total), at least 1.
__device__ inline uint64_t top_p_mass(float top_p, uint64_t total) {
  const auto p = static_cast<unsigned __int128>(ceil(static_cast<double>(top_p) * 0x1p40));
  const auto mass = static_cast<uint64_t>((p * total + ((uint64_t{1} << 40) - 1)) >> 40);
  return mass < 1 ? 1 : mass > total ? total : mass;
}

__device__ inline uint64_t total_mass(const Row& row, Shared& shared) {
  uint64_t sum = 0;
  gpu::for_my_logits(row.logits, row.vocab,
                     [&](int64_t id, float) { sum += row.mass(static_cast<int>(id)); });
  return block_sum(sum, shared);
}

// The first id in [first, last) whose cumulative mass from `first` on exceeds `target`: threads take ranges
// of ids.
__device__ inline int inverse_cdf(const Row& row, int first, int last, uint64_t target, Shared& shared) {
  const int each = (last - first + kThreads - 1) / kThreads;
  const int begin = min(first + static_cast<int>(threadIdx.x) * each, last);
  const int end = min(begin + each, last);
  uint64_t mine = 0;
  for (int id = begin; id < end; ++id) {
    mine += row.mass(id);
  }
  uint64_t before = sum_before(mine, shared);
  if (before <= target && target < before + mine) {
    int id = begin;
    uint64_t m = row.mass(id);
    while (target - before >= m) {
      before += m;
      m = row.mass(++id);
    }
    shared.found[0] = static_cast<uint64_t>(id);
  }
  __syncthreads();
  return static_cast<int>(shared.found[0]);
}

// The masses of the whole row, a group of tiles at a time: where a draw without truncation looks.
struct Groups {
  int tiles_per_group;
  int count;
};
__device__ inline Groups groups_of(int vocab) {
  const int tiles = (vocab + gpu::kSoftmaxTile - 1) / gpu::kSoftmaxTile;
  const int each = (tiles + kGroups - 1) / kGroups;
  return {each, (tiles + each - 1) / each};
}

// The sum of a group's shares, for every thread.
__device__ inline uint64_t group_mass(const Shared& shared, int group) {
  uint64_t sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    sum += shared.groups[group][w];
  }
  return sum;
}

// Draws from the whole row: first its group of tiles, then within it.
__device__ inline int draw_whole(const Row& row, const Groups& groups, uint64_t target, Shared& shared) {
  int group = 0;
  for (uint64_t m = group_mass(shared, 0); target >= m; m = group_mass(shared, group)) {
    target -= m;
    ++group;
  }
  const int size = groups.tiles_per_group * gpu::kSoftmaxTile;
  return inverse_cdf(row, group * size, min(row.vocab, (group + 1) * size), target, shared);
}

// The largest logit's lowest id.
__device__ inline int largest(const Row& row, Shared& shared) {
  uint64_t best = 0;
  for (int id = static_cast<int>(threadIdx.x); id < row.vocab; id += kThreads) {
    const uint64_t rank =
        (static_cast<uint64_t>(row.key(id)) << 32) | (0xffffffffu - static_cast<uint32_t>(id));
    best = rank > best ? rank : best;
  }
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(block_max(best, shared)));
}

__device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

__global__ void __launch_bounds__(kThreads) draw_kernel(const float* logits, int64_t stride, int vocab,
                                                        const DrawRequest* requests, DrawResult* results) {
  __shared__ Shared shared;
  gpu::wait_for_previous();
  gpu::allow_next();
  const DrawRequest request = requests[blockIdx.x];
  const bool greedy = request.temperature == 0.0F;
  Row row{logits + blockIdx.x * stride, vocab, greedy ? 1.0F : request.temperature, 0.0F, {}, {}};
  DrawResult result;
  uint64_t first_bad = 0;  // the complement of its id, so that the largest is the first
  gpu::for_my_logits(row.logits, vocab, [&](int64_t id, float logit) {
    if (!is_finite(logit)) {
      const uint64_t v = ~static_cast<uint64_t>(id);
      first_bad = v > first_bad ? v : first_bad;
    }
  });
  first_bad = block_max(first_bad, shared);
  if (first_bad != 0) {
    result.bad_token = static_cast<int32_t>(~first_bad);
    result.logprob = row.logits[result.bad_token];
  } else {
    const Groups groups = groups_of(vocab);
    uint64_t share = 0;  // of the current group
    int group = 0;
    const auto store_share = [&] {
      for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        share += __shfl_xor_sync(kFullMask, share, offset);
      }
      if (threadIdx.x % kWarp == 0) {
        shared.groups[group][threadIdx.x / kWarp] = share;
      }
      share = 0;
    };
    const gpu::SoftmaxSums sums = gpu::softmax_sums(
        row.logits, vocab, row.temperature, shared.softmax, [&](float p) { share += mass_of(p); },
        [&](int tile) {
          if ((tile + 1) % groups.tiles_per_group == 0) {
            store_share();
            ++group;
          }
        });
    if (group < groups.count) {
      store_share();
    }
    __syncthreads();
    row.max = sums.max;
    if (!greedy && (!is_finite(sums.max) || !is_finite(sums.sum))) {
      result.overflow = 1;
    } else {
      uint64_t total = 0;
      uint64_t kept = 0;
      if (greedy) {
        result.token = largest(row, shared);
      } else {
        for (int g = 0; g < groups.count; ++g) {
          total += group_mass(shared, g);
        }
        const bool cut_k = request.top_k > 0 && request.top_k < vocab;
        const bool cut_p = request.top_p < 1.0F;
        if (cut_k) {
          row.top_k = select_cut(row, static_cast<uint64_t>(request.top_k), shared,
                                 [](int) -> uint64_t { return 1; });
        }
        if (cut_p) {
          const uint64_t in_top_k = cut_k ? total_mass(row, shared) : total;
          const Row& all = row;
          row.top_p = select_cut(row, top_p_mass(request.top_p, in_top_k), shared,
                                 [&](int id) -> uint64_t { return all.mass(id); });
        }
        kept = cut_k || cut_p ? total_mass(row, shared) : total;
        const uint64_t target = __umul64hi(request.random, kept);
        result.token = cut_k || cut_p ? inverse_cdf(row, 0, vocab, target, shared)
                                      : draw_whole(row, groups, target, shared);
      }
      const float log_sum = log_scalar(sums.sum);
      result.logprob = (gpu::tempered(row.logits[result.token], row.temperature) - sums.max) - log_sum;
      if (!greedy) {
        result.sampling_logprob = result.logprob;
        if (kept != total) {
          const double share = static_cast<double>(kept) / static_cast<double>(total);
          result.sampling_logprob = result.logprob - log_scalar(static_cast<float>(share));
        }
      }
    }
  }
  if (threadIdx.x == 0) {
    results[blockIdx.x] = result;
  }
}

__global__ void __launch_bounds__(kThreads)
    take_kernel(const DrawResult* results, const int32_t* tasks, int64_t rows, int32_t* tokens) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r < rows && tasks[r] >= 0) {
    tokens[r] = max(results[tasks[r]].token, 0);
  }
}

}  // namespace

void draw_tokens(MatrixView logits, const DrawRequest* requests, DrawResult* results, StreamHandle stream) {
  require(logits.dtype == Dtype::kF32 && logits.cols > 0 && logits.cols <= kMaxDrawVocab,
          "logits.dtype == Dtype::kF32 && logits.cols > 0 && logits.cols <= kMaxDrawVocab");
  if (logits.rows == 0) {
    return;
  }
  gpu::launch_overlapped(draw_kernel, static_cast<unsigned>(logits.rows), kThreads, 0, stream,
                         static_cast<const float*>(logits.data), logits.stride, static_cast<int>(logits.cols),
                         requests, results);
  check_launch("draw_tokens");
}

void take_tokens(const DrawResult* results, const int32_t* tasks, int64_t rows, int32_t* tokens,
                 StreamHandle stream) {
  if (rows == 0) {
    return;
  }
  gpu::launch_overlapped(take_kernel, static_cast<unsigned>(gpu::ceil_div(rows, kThreads)), kThreads, 0,
                         stream, results, tasks, rows, tokens);
  check_launch("take_tokens");
}

}  // namespace accord::kernels::cuda
