#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/philox.hpp"
#include "kernels/moe/moe.hpp"
#include "kernels/router/router.hpp"
#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<int32_t> top(const std::vector<float>& probs, int64_t k) {
  std::vector<int32_t> ids(static_cast<size_t>(k));
  router_top_k(probs.data(), static_cast<int64_t>(probs.size()), k, ids.data());
  return ids;
}

}  // namespace

TEST_CASE("Router probabilities are the softmax over all experts") {
  const std::vector<float> logits = normal_values(37, 1, 3.0);
  std::vector<float> probs(37);
  router_softmax(logits.data(), 37, probs.data());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(double{x});
  for (size_t e = 0; e < 37; ++e) CHECK(probs[e] == Approx(std::exp(double{logits[e]}) / sum).epsilon(1e-6));
}

TEST_CASE("Router takes the best experts and breaks ties by the lowest id") {
  CHECK(top({0.1F, 0.4F, 0.4F, 0.1F}, 2) == std::vector<int32_t>{1, 2});
  CHECK(top({0.2F, 0.2F, 0.2F, 0.2F, 0.2F}, 3) == std::vector<int32_t>{0, 1, 2});
  CHECK(top({0.1F, 0.3F, 0.2F, 0.3F}, 4) == std::vector<int32_t>{1, 3, 2, 0});
  PhiloxStream random(1, 1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> probs(16);
    for (float& p : probs) p = static_cast<float>(random.next_below(6)) / 8.0F;
    std::vector<int32_t> order(16);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return probs[static_cast<size_t>(a)] > probs[static_cast<size_t>(b)];
    });
    order.resize(5);
    CHECK(top(probs, 5) == order);
  }
}

TEST_CASE("Router picks valid experts from NaN scores") {
  CHECK(top({kNaN, kNaN, kNaN, kNaN}, 2) == std::vector<int32_t>{0, 1});
  CHECK(top({kNaN, 0.1F, kNaN, 0.2F}, 3) == std::vector<int32_t>{3, 1, 0});
  std::vector<float> logits = {0.5F, kNaN, 1.0F};
  router_softmax(logits.data(), 3, logits.data());
  for (const float p : logits) CHECK(std::isnan(p));
}

TEST_CASE("Router weights are divided by their sum when asked") {
  const std::vector<float> probs = {0.1F, 0.2F, 0.3F, 0.4F};
  const std::vector<int32_t> ids = {3, 1};
  std::vector<float> weights(2);
  router_weights(probs.data(), ids.data(), 2, false, weights.data());
  CHECK(weights == std::vector<float>{0.4F, 0.2F});
  router_weights(probs.data(), ids.data(), 2, true, weights.data());
  CHECK(weights == std::vector<float>{0.4F / (0.4F + 0.2F), 0.2F / (0.4F + 0.2F)});
}

TEST_CASE("A sigmoid router chooses by score and bias within the best groups and weighs by score") {
  RouterRule rule;
  rule.scoring = RouterScoring::kSigmoid;
  rule.experts = 8;
  rule.k = 2;
  rule.groups = 4;
  rule.chosen_groups = 2;
  rule.factor = 2.5F;
  std::vector<float> scores(8);
  std::vector<float> scratch(12);
  std::vector<int32_t> ids(2);
  const std::vector<float> logits{-2.0F, 0.0F, 3.0F, -40.0F, 100.0F, -100.0F, 1.0F, 1.0F};
  router_scores(rule, logits.data(), scores.data());
  for (size_t e = 0; e < 8; ++e) {
    CHECK(scores[e] == Approx(1.0 / (1.0 + std::exp(-double{logits[e]}))).epsilon(1e-6).margin(1e-38));
  }
  const auto choose = [&](const std::vector<float>& s, const std::vector<float>& bias) {
    router_choose(rule, s.data(), bias.empty() ? nullptr : bias.data(), ids.data(), scratch.data());
    return ids;
  };
  // Group sums .2 .9 .7 .8: the groups of experts 2, 3 and 6, 7 are kept, so that 4 is out although it is
  // best.
  const std::vector<float> s{0.1F, 0.1F, 0.5F, 0.4F, 0.7F, 0.0F, 0.4F, 0.4F};
  CHECK(choose(s, {}) == std::vector<int32_t>{2, 3});
  // Equal choices go to the lowest expert, equal groups to the lowest group.
  CHECK(choose({0.3F, 0.3F, 0.3F, 0.3F, 0.3F, 0.3F, 0.3F, 0.3F}, {}) == std::vector<int32_t>{0, 1});
  // The bias moves the choice, not the weights.
  const std::vector<float> bias{0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 1.0F, 0.0F, 0.0F};
  CHECK(choose(s, bias) == std::vector<int32_t>{5, 4});
  std::vector<float> weights(2);
  router_weights(rule, s.data(), ids.data(), weights.data());
  CHECK(weights[0] == 0.0F);
  CHECK(weights[1] == 2.5F);
  rule.normalize = false;
  router_weights(rule, s.data(), ids.data(), weights.data());
  CHECK(weights[1] == 0.7F * 2.5F);
  // Whatever is not a number: two different valid experts.
  const std::vector<float> broken(8, kNaN);
  choose(broken, bias);
  CHECK(ids[0] != ids[1]);
  for (const int32_t id : ids) CHECK((id >= 0 && id < 8));
}

TEST_CASE("Tokens are sorted by expert and then by token and come back") {
  constexpr int64_t kTokens = 23;
  constexpr int64_t kExperts = 6;
  constexpr int64_t kSlots = 2;
  PhiloxStream random(2, 2);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto first = static_cast<int32_t>(random.next_below(kExperts));
    ids.push_back(first);
    ids.push_back((first + 1 + static_cast<int32_t>(random.next_below(kExperts - 1))) % kExperts);
  }
  std::vector<int32_t> offsets(kExperts + 1), tokens(ids.size()), slots(ids.size()), rows(ids.size());
  sort_by_expert(ids, kExperts, kSlots, {offsets.data(), tokens.data(), slots.data(), rows.data()});
  CHECK(offsets[0] == 0);
  CHECK(offsets[kExperts] == static_cast<int32_t>(ids.size()));
  for (int32_t e = 0; e < kExperts; ++e) {
    CHECK(std::count(ids.begin(), ids.end(), e) ==
          offsets[static_cast<size_t>(e) + 1] - offsets[static_cast<size_t>(e)]);
    for (int32_t r = offsets[static_cast<size_t>(e)]; r < offsets[static_cast<size_t>(e) + 1]; ++r) {
      const auto at = static_cast<size_t>(r);
      const auto slot = static_cast<size_t>(tokens[at] * kSlots + slots[at]);
      CHECK(ids[slot] == e);
      CHECK(rows[slot] == r);
      CHECK((r == offsets[static_cast<size_t>(e)] || tokens[at - 1] < tokens[at]));
    }
  }
}

TEST_CASE("Experts are combined in slot order and rounded once before the residual") {
  constexpr int64_t kWidth = 19;
  std::vector<BF16> x = rounded(normal_values(2 * kWidth, 1));
  std::vector<BF16> down = rounded(normal_values(4 * kWidth, 2));
  const std::vector<float> weights = {0.7F, 0.3F, 0.6F, 0.4F};
  const std::vector<int32_t> rows = {2, 0, 1, 3};
  std::vector<BF16> y(x.size());
  combine_experts(matrix_view(x.data(), 2, kWidth), matrix_view(down.data(), 4, kWidth), weights.data(),
                  rows.data(), 2, 0, 2, matrix_view(y.data(), 2, kWidth));
  for (size_t t = 0; t < 2; ++t) {
    for (size_t i = 0; i < kWidth; ++i) {
      float sum = 0.0F;
      for (size_t s = 0; s < 2; ++s) {
        sum = std::fma(weights[2 * t + s], to_float(down[static_cast<size_t>(rows[2 * t + s]) * kWidth + i]),
                       sum);
      }
      const float expected = to_float(x[t * kWidth + i]) + to_float(to_bf16(sum));
      CHECK(y[t * kWidth + i].bits == to_bf16(expected).bits);
    }
  }
}

}  // namespace accord::kernels::testing
