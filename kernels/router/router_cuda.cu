// Scores, choice and weights of experts (router.hpp): logits [T,E] fp32 -> ids, weights [T,k]. One warp a
// token; its scores and choices lie in shared memory. Sums take sixteen-lane order; the weights' sum
// ascending slots.
//
// Choosing: a candidate's rank is a 64-bit key, its value in an order that integers have (NaN lowest, both
// zeros equal) above the complement of its id, so that the largest key is the best value of the lowest id.
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/math/exp_log.hpp"
#include "kernels/router/router_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::kFullMask;
using gpu::kSumLanes;
using gpu::kWarp;

constexpr int kWarps = 4;
constexpr int kMaxGroups = 32;
constexpr float kNoScore = -__builtin_huge_valf();

__device__ inline uint64_t rank_of(float value, int id) {
  uint32_t order = 0;  // NaN
  if (value == value) {
    const uint32_t bits = __float_as_uint(value + 0.0F);
    order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  return (static_cast<uint64_t>(order) << 32) | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ inline int id_of(uint64_t rank) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(rank));
}

__device__ inline uint64_t warp_max(uint64_t v) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kFullMask, v, offset);
    v = other > v ? other : v;
  }
  return v;
}

// The best of values [begin, end) that ranks below `below`.
__device__ inline uint64_t best_below(const float* values, int begin, int end, uint64_t below, int lane) {
  uint64_t best = 0;
  for (int e = begin + lane; e < end; e += kWarp) {
    const uint64_t rank = rank_of(values[e], e);
    best = rank < below && rank > best ? rank : best;
  }
  return warp_max(best);
}

__device__ inline void softmax(const float* logits, int experts, float* scores, int lane) {
  float max = kNoScore;
  for (int e = lane; e < experts; e += kWarp) {
    max = fmaxf(max, logits[e]);
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    max = fmaxf(max, __shfl_xor_sync(kFullMask, max, offset));
  }
  for (int e = lane; e < experts; e += kWarp) {
    scores[e] = exp_scalar(logits[e] - max);
  }
  __syncwarp();
  float sum = 0.0F;
  for (int e = lane % kSumLanes; e < experts; e += kSumLanes) {
    sum = sum + scores[e];
  }
  sum = gpu::fold_lanes_shuffled(sum);
  __syncwarp();
  for (int e = lane; e < experts; e += kWarp) {
    scores[e] = scores[e] / sum;
  }
}

// Leaves -inf in the choices of the groups that are not among the best.
__device__ inline void drop_groups(const RouterRule& rule, float* choice, float* group_scores, int lane) {
  const int groups = static_cast<int>(rule.groups);
  const int in_group = static_cast<int>(rule.experts / rule.groups);
  for (int g = 0; g < groups; ++g) {
    const int begin = g * in_group;
    const uint64_t first = best_below(choice, begin, begin + in_group, ~uint64_t{0}, lane);
    const uint64_t second = best_below(choice, begin, begin + in_group, first, lane);
    if (lane == 0) {
      group_scores[g] = choice[id_of(first)] + choice[id_of(second)];
    }
  }
  __syncwarp();
  uint64_t below = ~uint64_t{0};
  uint32_t kept = 0;
  for (int64_t i = 0; i < rule.chosen_groups; ++i) {
    below = best_below(group_scores, 0, groups, below, lane);
    kept |= 1u << id_of(below);
  }
  for (int e = lane; e < static_cast<int>(rule.experts); e += kWarp) {
    if ((kept >> (e / in_group) & 1u) == 0) {
      choice[e] = kNoScore;
    }
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kWarps* kWarp)
    route_kernel(RouterRule rule, const float* logits, int64_t tokens, const float* bias, bool replayed,
                 float* all_scores, int32_t* ids, float* weights) {
  extern __shared__ float shared[];
  gpu::wait_for_previous();
  gpu::allow_next();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int experts = static_cast<int>(rule.experts);
  const int k = static_cast<int>(rule.k);
  float* scores = shared + static_cast<int64_t>(warp) * (2 * experts + kMaxGroups);
  float* choice = scores + experts;
  float* group_scores = choice + experts;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (token >= tokens) {
    return;
  }
  const float* in = logits + token * experts;
  if (rule.scoring == RouterScoring::kSoftmax) {
    softmax(in, experts, scores, lane);
  } else {
    for (int e = lane; e < experts; e += kWarp) {
      scores[e] = 1.0F / (1.0F + exp_scalar(-in[e]));
    }
  }
  __syncwarp();
  if (all_scores != nullptr) {
    for (int e = lane; e < experts; e += kWarp) {
      all_scores[token * experts + e] = scores[e];
    }
  }
  int32_t* chosen = ids + token * k;
  if (!replayed) {
    for (int e = lane; e < experts; e += kWarp) {
      choice[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
    }
    __syncwarp();
    if (rule.chosen_groups < rule.groups) {
      drop_groups(rule, choice, group_scores, lane);
    }
    uint64_t below = ~uint64_t{0};
    for (int s = 0; s < k; ++s) {
      below = best_below(choice, 0, experts, below, lane);
      if (lane == 0) {
        chosen[s] = id_of(below);
      }
    }
    __syncwarp();
  }
  if (lane == 0) {
    float sum = 0.0F;
    for (int s = 0; s < k; ++s) {
      sum = sum + scores[chosen[s]];
    }
    float* out = weights + token * k;
    const bool softmaxed = rule.scoring == RouterScoring::kSoftmax;
    for (int s = 0; s < k; ++s) {
      const float score = scores[chosen[s]];
      if (softmaxed) {
        out[s] = rule.normalize ? score / sum : score;
      } else {
        out[s] = score / (rule.normalize ? sum + kRouterEpsilon : 1.0F) * rule.factor;
      }
    }
  }
}

}  // namespace

void route(const RouterRule& rule, const float* logits, int64_t tokens, const float* bias, bool replayed,
           float* scores, int32_t* ids, float* weights, StreamHandle stream) {
  require(rule.experts <= kMaxRouterExperts && rule.groups <= kMaxGroups && rule.k <= rule.experts,
          "rule.experts <= kMaxRouterExperts && rule.groups <= kMaxGroups && rule.k <= rule.experts");
  if (tokens == 0) {
    return;
  }
  const auto bytes =
      static_cast<size_t>(kWarps) * static_cast<size_t>(2 * rule.experts + kMaxGroups) * sizeof(float);
  const auto grid = static_cast<unsigned>(gpu::ceil_div(tokens, kWarps));
  gpu::launch_overlapped(route_kernel, grid, kWarps * kWarp, bytes, stream, rule, logits, tokens, bias,
                         replayed, scores, ids, weights);
  check_launch("route");
}

}  // namespace accord::kernels::cuda
