#include "rollout/sampler.hpp"

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/philox.hpp"
#include "kernels/logprob/logprob.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::rollout;

namespace {

constexpr int kDraws = 20000;

SamplingParams params_of(float temperature, float top_p = 1.0F, int32_t top_k = -1) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = top_k;
  params.max_new_tokens = 1;
  return params;
}

// Token counts of kDraws draws under the random numbers of consecutive positions.
std::vector<int> counts_of(const std::vector<float>& logits, const SamplingParams& params, uint64_t seed) {
  std::vector<int> counts(logits.size(), 0);
  SamplerScratch scratch;
  for (int i = 0; i < kDraws; ++i) {
    const auto drawn =
        draw_token(logits, params, token_random(seed, {.step = 3, .prompt_id = 5}, i), scratch);
    REQUIRE(drawn.ok());
    ++counts[static_cast<size_t>(drawn->token)];
  }
  return counts;
}

// Pearson's statistic against softmax(logits / temperature) restricted to `kept`.
double chi_square(const std::vector<int>& counts, const std::vector<float>& logits, double temperature,
                  const std::set<size_t>& kept) {
  double sum = 0.0;
  for (const size_t i : kept) sum += std::exp(logits[i] / temperature);
  double chi = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (kept.count(i) == 0) {
      CHECK(counts[i] == 0);
      continue;
    }
    const double expected = kDraws * std::exp(logits[i] / temperature) / sum;
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return chi;
}

std::set<size_t> ids_below(size_t n) {
  std::set<size_t> ids;
  for (size_t i = 0; i < n; ++i) ids.insert(i);
  return ids;
}

const std::vector<float> kLogits = {0.3F, 1.7F, -0.5F, 2.0F, 0.0F, 1.1F, -1.2F, 0.9F, 1.4F, -0.1F};

}  // namespace

// 99.9 % quantiles of chi-square: 9 degrees 27.88, 4 degrees 18.47, 3 degrees 16.27.

TEST_CASE("draws follow the softmax at several temperatures") {
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    CAPTURE(temperature);
    const auto counts = counts_of(kLogits, params_of(temperature), 11);
    CHECK(chi_square(counts, kLogits, temperature, ids_below(kLogits.size())) < 27.88);
  }
}

TEST_CASE("a wrong distribution fails the same test") {
  const auto counts = counts_of(kLogits, params_of(1.0F), 11);
  CHECK(chi_square(counts, kLogits, 1.1, ids_below(kLogits.size())) > 27.88);
}

TEST_CASE("top-k keeps the k largest") {
  const auto counts = counts_of(kLogits, params_of(1.0F, 1.0F, 4), 12);
  CHECK(chi_square(counts, kLogits, 1.0, {1, 3, 5, 8}) < 16.27);
}

TEST_CASE("top-p keeps the smallest set that reaches p") {
  // Probabilities, largest first: 3 .279, 1 .207, 8 .153, 5 .113, 7 .093, ...; cumulative .279 .486 .639 .752
  // .845
  CHECK(chi_square(counts_of(kLogits, params_of(1.0F, 0.80F), 13), kLogits, 1.0, {3, 1, 8, 5, 7}) < 18.47);
  CHECK(chi_square(counts_of(kLogits, params_of(1.0F, 0.70F), 13), kLogits, 1.0, {3, 1, 8, 5}) < 16.27);
  const auto one = counts_of(kLogits, params_of(1.0F, 0.2F), 13);
  CHECK(one[3] == kDraws);
}

TEST_CASE("top-p applies to what top-k left") {
  // Of the four largest, renormalised: .371 .275 .204 .151; three of them reach 0.8.
  CHECK(chi_square(counts_of(kLogits, params_of(1.0F, 0.8F, 4), 14), kLogits, 1.0, {3, 1, 8}) < 13.82);
}

TEST_CASE("ties at the border of a kept set go to the lowest ids") {
  const std::vector<float> equal(8, 0.25F);
  const auto k3 = counts_of(equal, params_of(1.0F, 1.0F, 3), 15);
  const auto p_half = counts_of(equal, params_of(1.0F, 0.5F), 15);
  const auto p_above = counts_of(equal, params_of(1.0F, 0.5001F), 15);
  for (size_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK((k3[i] > 0) == (i < 3));
    CHECK((p_half[i] > 0) == (i < 4));
    CHECK((p_above[i] > 0) == (i < 5));
  }
  // -0 and +0 are a tie as well.
  const std::vector<float> zeros = {-0.0F, 0.0F, -0.0F, -1.0F};
  const auto k1 = counts_of(zeros, params_of(1.0F, 1.0F, 1), 15);
  CHECK(k1[0] == kDraws);
}

TEST_CASE("kept sets of a large vocabulary equal a sort") {
  constexpr size_t kVocab = 5000;
  PhiloxStream random(21, 0);
  std::vector<float> logits(kVocab);
  for (float& x : logits) x = static_cast<float>(std::round(random.next_normal() * 20.0) / 8.0);  // many ties
  std::vector<size_t> order(kVocab);
  for (size_t i = 0; i < kVocab; ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  SamplerScratch scratch;
  for (const int32_t k : {1, 7, 100, 1234, 4999}) {
    CAPTURE(k);
    const std::set<size_t> kept(order.begin(), order.begin() + k);
    double share = 0.0;
    const auto stats = kernels::softmax_stats(logits.data(), kVocab, 1.0F);
    for (const size_t i : kept) share += std::exp(static_cast<double>(logits[i] - stats.max)) / stats.sum;
    for (int draw = 0; draw < 300; ++draw) {
      const auto drawn = draw_token(logits, params_of(1.0F, 1.0F, k), token_random(22, {}, draw), scratch);
      REQUIRE(drawn.ok());
      REQUIRE(kept.count(static_cast<size_t>(drawn->token)) == 1);
      CHECK(drawn->sampling_logprob == Approx(drawn->logprob - std::log(share)).margin(1e-5));
    }
  }
}

TEST_CASE("the smallest and largest random numbers draw the first and last kept id") {
  SamplerScratch scratch;
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  CHECK(draw_token(kLogits, params_of(1.0F), 0, scratch)->token == 0);
  CHECK(draw_token(kLogits, params_of(1.0F), most, scratch)->token == 9);
  CHECK(draw_token(kLogits, params_of(1.0F, 1.0F, 3), 0, scratch)->token == 1);
  CHECK(draw_token(kLogits, params_of(1.0F, 1.0F, 3), most, scratch)->token == 8);
  // A token of probability zero is never drawn.
  const std::vector<float> spike = {-200.0F, 50.0F, -200.0F};
  CHECK(draw_token(spike, params_of(1.0F), 0, scratch)->token == 1);
  CHECK(draw_token(spike, params_of(1.0F), most, scratch)->token == 1);
}

TEST_CASE("log-probabilities are those of the shared kernel") {
  SamplerScratch scratch;
  for (const float temperature : {0.7F, 1.0F, 1.3F}) {
    for (int i = 0; i < 50; ++i) {
      const uint64_t random = token_random(31, {}, i);
      const auto full = draw_token(kLogits, params_of(temperature), random, scratch);
      REQUIRE(full.ok());
      const float want = kernels::token_logprob(kLogits.data(), static_cast<int64_t>(kLogits.size()),
                                                full->token, temperature);
      CHECK(full->logprob == want);
      CHECK(full->sampling_logprob == want);
      const auto cut = draw_token(kLogits, params_of(temperature, 1.0F, 1), random, scratch);
      CHECK(cut->logprob == kernels::token_logprob(kLogits.data(), 10, 3, temperature));
      CHECK(cut->sampling_logprob == Approx(0.0).margin(1e-6));
    }
  }
}

TEST_CASE("temperature zero is greedy, ties to the lowest id") {
  SamplerScratch scratch;
  const std::vector<float> logits = {0.5F, 2.0F, 2.0F, -1.0F};
  const auto drawn = draw_token(logits, params_of(0.0F), 123, scratch);
  REQUIRE(drawn.ok());
  CHECK(drawn->token == 1);
  CHECK(drawn->logprob == kernels::token_logprob(logits.data(), 4, 1, 1.0F));
  CHECK(drawn->sampling_logprob == 0.0F);
}

TEST_CASE("a logit that is not finite is an error that names the token") {
  SamplerScratch scratch;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const float temperature : {0.0F, 1.0F}) {
      std::vector<float> logits = kLogits;
      logits[6] = bad;
      const auto drawn = draw_token(logits, params_of(temperature, 0.9F, 5), 1, scratch);
      REQUIRE(!drawn.ok());
      CHECK(std::string(message_of(drawn.status())).find("token 6") != std::string::npos);
    }
  }
  const std::vector<float> huge = {3e38F, -3e38F};
  CHECK(!draw_token(huge, params_of(0.001F), 1, scratch).ok());
}

TEST_CASE("random bits depend on every part of the sample's identity") {
  const SampleKey key{.step = 1, .prompt_id = 2, .sample_index = 3};
  const uint64_t base = token_random(7, key, 4);
  CHECK(token_random(7, key, 4) == base);
  CHECK(token_random(8, key, 4) != base);
  CHECK(token_random(7, {.step = 2, .prompt_id = 2, .sample_index = 3}, 4) != base);
  CHECK(token_random(7, {.step = 1, .prompt_id = 3, .sample_index = 3}, 4) != base);
  CHECK(token_random(7, {.step = 1, .prompt_id = 2, .sample_index = 4}, 4) != base);
  CHECK(token_random(7, key, 5) != base);
}
