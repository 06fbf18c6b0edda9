#include <algorithm>
#include <cassert>
#include <limits>

#include "kernels/logprob/logprob.hpp"
#include "kernels/math/math.hpp"
#include "kernels/math/simd.hpp"
#include "kernels/router/router.hpp"

namespace accord::kernels {

void router_softmax(const float* logits, int64_t experts, float* probs) {
  const SoftmaxStats stats = softmax_stats(logits, experts, 1.0F);
  softmax_weights(logits, experts, 1.0F, stats, probs);
  for (int64_t e = 0; e < experts; ++e) {
    probs[e] = probs[e] / stats.sum;
  }
}

void router_top_k(const float* probs, int64_t experts, int64_t k, int32_t* ids) {
  assert(k <= experts);
  // Insertion into the list of the best so far. Ids ascend, so `<` keeps the lowest id among equals;
  // NaN never moves ahead of anything.
  const auto better = [&](float a, float b) { return a > b || (b != b && a == a); };
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const float p = probs[e];
    if (count == k && !better(p, probs[ids[k - 1]])) {
      continue;
    }
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && better(p, probs[ids[at - 1]]); --at) {
      ids[at] = ids[at - 1];
    }
    ids[at] = static_cast<int32_t>(e);
  }
}

void router_weights(const float* probs, const int32_t* ids, int64_t k, bool normalize, float* weights) {
  float sum = 0.0F;
  for (int64_t s = 0; s < k; ++s) {
    weights[s] = probs[ids[s]];
    sum += weights[s];
  }
  if (normalize) {
    for (int64_t s = 0; s < k; ++s) {
      weights[s] = weights[s] / sum;
    }
  }
}

RouterRule router_rule(const ModelConfig& c) {
  return {c.router_scoring,
          c.num_experts,
          c.num_experts_per_token,
          c.num_expert_groups,
          c.num_chosen_groups,
          c.norm_topk_prob,
          static_cast<float>(c.routed_scaling_factor)};
}

void router_scores(const RouterRule& rule, const float* logits, float* scores) {
  if (rule.scoring == RouterScoring::kSoftmax) {
    router_softmax(logits, rule.experts, scores);
    return;
  }
  for (int64_t e = 0; e < rule.experts; ++e) {
    scores[e] = 1.0F / (1.0F + exp_f32(-logits[e]));
  }
}

void router_choose(const RouterRule& rule, const float* scores, const float* bias, int32_t* ids,
                   float* scratch) {
  if (bias == nullptr && rule.chosen_groups == rule.groups) {
    router_top_k(scores, rule.experts, rule.k, ids);
    return;
  }
  float* choice = scratch;
  for (int64_t e = 0; e < rule.experts; ++e) {
    choice[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
  }
  if (rule.chosen_groups < rule.groups) {
    float* group_scores = scratch + rule.experts;
    const int64_t in_group = rule.experts / rule.groups;
    for (int64_t g = 0; g < rule.groups; ++g) {
      const float* group = choice + g * in_group;
      int32_t best[2];
      router_top_k(group, in_group, 2, best);
      group_scores[g] = group[best[0]] + group[best[1]];
    }
    // A group is kept when fewer than chosen_groups others come before it.
    const auto before = [&](int64_t a, int64_t b) {
      const float x = group_scores[a];
      const float y = group_scores[b];
      return x > y || (y != y && x == x) || (((x == y) || (x != x && y != y)) && a < b);
    };
    for (int64_t g = 0; g < rule.groups; ++g) {
      int64_t ahead = 0;
      for (int64_t other = 0; other < rule.groups; ++other) ahead += before(other, g) ? 1 : 0;
      if (ahead >= rule.chosen_groups) {
        std::fill_n(choice + g * in_group, in_group, -std::numeric_limits<float>::infinity());
      }
    }
  }
  router_top_k(choice, rule.experts, rule.k, ids);
}

void router_weights(const RouterRule& rule, const float* scores, const int32_t* ids, float* weights) {
  if (rule.scoring == RouterScoring::kSoftmax) {
    router_weights(scores, ids, rule.k, rule.normalize, weights);
    return;
  }
  float sum = 0.0F;
  for (int64_t s = 0; s < rule.k; ++s) {
    weights[s] = scores[ids[s]];
    sum += weights[s];
  }
  const float divisor = rule.normalize ? sum + kRouterEpsilon : 1.0F;
  for (int64_t s = 0; s < rule.k; ++s) {
    weights[s] = weights[s] / divisor * rule.factor;
  }
}

}  // namespace accord::kernels
