#include "kernels/logprob/logprob.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {

TEST_CASE("Log-probabilities and entropy agree with double precision") {
  for (const int64_t vocab : {1, 5, 8, 203, 4099}) {
    for (const float temperature : {1.0F, 0.7F, 1.3F}) {
      const std::vector<float> logits = normal_values(vocab, static_cast<uint64_t>(vocab), 5.0);
      double max = -1e300;
      for (const float x : logits) max = std::max(max, x / double{temperature});
      double sum = 0.0;
      double weighted = 0.0;
      for (const float x : logits) {
        const double d = x / double{temperature} - max;
        sum += std::exp(d);
        weighted += std::exp(d) * d;
      }
      const SoftmaxStats stats = softmax_stats(logits.data(), vocab, temperature);
      const double entropy = std::log(sum) - weighted / sum;
      CAPTURE(vocab, temperature);
      CHECK(softmax_entropy(logits.data(), vocab, temperature, stats) ==
            Approx(entropy).epsilon(2e-6).margin(1e-6));
      std::vector<float> weights(logits.size());
      softmax_weights(logits.data(), vocab, temperature, stats, weights.data());
      for (int64_t i = 0; i < vocab; i += 1 + vocab / 17) {
        const auto at = static_cast<size_t>(i);
        const double exact = logits[at] / double{temperature} - max - std::log(sum);
        const float lp = token_logprob(logits.data(), vocab, static_cast<int32_t>(i), temperature);
        CHECK(lp == Approx(exact).epsilon(1e-6).margin(2e-6));
        CHECK(lp == token_logprob(stats, logits[at], temperature));
        CHECK(weights[at] / stats.sum == Approx(std::exp(exact)).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("A NaN logit makes the whole row NaN") {
  std::vector<float> logits = normal_values(40, 1);
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(token_logprob(logits.data(), 40, 3, 1.0F)));
  const SoftmaxStats stats = softmax_stats(logits.data(), 40, 1.0F);
  CHECK(std::isnan(softmax_entropy(logits.data(), 40, 1.0F, stats)));
}

TEST_CASE("Excluded logits of minus infinity count as zero probability") {
  std::vector<float> logits(20, -std::numeric_limits<float>::infinity());
  logits[3] = 1.0F;
  logits[11] = 1.0F;
  const SoftmaxStats stats = softmax_stats(logits.data(), 20, 1.0F);
  CHECK(token_logprob(stats, 1.0F, 1.0F) == Approx(-std::log(2.0)));
  CHECK(softmax_entropy(logits.data(), 20, 1.0F, stats) == Approx(std::log(2.0)));
}

}  // namespace accord::kernels::testing
