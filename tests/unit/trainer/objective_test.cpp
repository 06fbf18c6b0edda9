#include "trainer/objective.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "unit/trainer/tolerance.hpp"

namespace accord::trainer {
namespace {

using Doubles = std::vector<double>;

double largest_difference(const Doubles& a, const Doubles& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= largest)) largest = d;
  }
  return largest;
}

nlohmann::json reference() {
  std::ifstream in(std::string(ACCORD_TEST_DATA) + "/grpo.json");
  return nlohmann::json::parse(in);
}

recipe::Aggregate aggregate_named(const std::string& name) {
  if (name == "token-mean") return recipe::Aggregate::kTokenMean;
  if (name == "seq-mean-token-mean") return recipe::Aggregate::kSeqMeanTokenMean;
  REQUIRE(name == "seq-mean-token-sum");
  return recipe::Aggregate::kSeqMeanTokenSum;
}

struct Case {
  Doubles advantages, old_logprobs, new_logprobs, ref_logprobs;
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
};

// Checks one policy_loss entry: key policy_loss|<aggregate>|<low>|<high>.
void check_policy_loss(const Case& c, const std::string& key, const nlohmann::json& expected, double dual) {
  CAPTURE(key);
  const size_t first = key.find('|');
  const size_t second = key.find('|', first + 1);
  const size_t third = key.find('|', second + 1);
  const auto aggregate = aggregate_named(key.substr(first + 1, second - first - 1));
  const ClipRange clip{std::stod(key.substr(second + 1, third - second - 1)),
                       std::stod(key.substr(third + 1)), dual};
  int64_t total = 0;
  int64_t samples = 0;  // with a response: the others count nowhere
  for (int64_t length : c.lengths) {
    total += length;
    samples += length > 0 ? 1 : 0;
  }
  double loss = 0.0, clipped = 0.0, dual_clipped = 0.0, kl = 0.0;
  Doubles gradient(c.new_logprobs.size());
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    const double weight = token_weight(aggregate, c.lengths[s], total, samples);
    for (int64_t t = 0; t < c.lengths[s]; ++t) {
      const size_t i = s * static_cast<size_t>(c.tokens) + static_cast<size_t>(t);
      const TokenLoss token = policy_loss(c.new_logprobs[i], c.old_logprobs[i], c.advantages[s], clip);
      loss += weight * token.loss;
      gradient[i] = weight * token.derivative;
      clipped += token.clipped ? 1.0 : 0.0;
      dual_clipped += token.dual_clipped ? 1.0 : 0.0;
      kl += c.old_logprobs[i] - c.new_logprobs[i];
    }
  }
  const double n = static_cast<double>(total) + 1e-8;
  const double eps = tolerance::kObjective;
  CHECK(std::abs(loss - expected["loss"].get<double>()) < eps);
  CHECK(std::abs(clipped / n - expected["clip_fraction"].get<double>()) < eps);
  CHECK(std::abs(dual_clipped / n - expected["clip_fraction_dual"].get<double>()) < eps);
  CHECK(std::abs(kl / n - expected["approx_kl"].get<double>()) < eps);
  CHECK(largest_difference(gradient, expected["grad_new_logprobs"].get<Doubles>()) < eps);
}

}  // namespace

TEST_CASE("objective equals the reference values in fp64") {
  const nlohmann::json all = reference();
  REQUIRE(all["std_epsilon"].get<double>() == kStdEpsilon);
  REQUIRE(all["cases"].size() == 6);
  int policies = 0;
  for (const auto& entry : all["cases"]) {
    Case c;
    c.lengths = entry["lengths"].get<std::vector<int64_t>>();
    c.tokens = entry["tokens"].get<int64_t>();
    c.old_logprobs = entry["old_logprobs"].get<Doubles>();
    c.new_logprobs = entry["new_logprobs"].get<Doubles>();
    c.ref_logprobs = entry["ref_logprobs"].get<Doubles>();
    const auto rewards = entry["rewards"].get<Doubles>();
    const int64_t group = entry["samples_per_group"].get<int64_t>();
    const std::pair<const char*, recipe::AdvantageKind> kinds[] = {
        {"advantage_std", recipe::AdvantageKind::kStd},
        {"advantage_mean_only", recipe::AdvantageKind::kMean},
        {"advantage_rloo", recipe::AdvantageKind::kLeaveOneOut}};
    for (const auto& [name, kind] : kinds) {
      Doubles advantages(rewards.size());
      group_advantages(kind, rewards, group, advantages);
      CAPTURE(name);
      CHECK(largest_difference(advantages, entry[name].get<Doubles>()) < tolerance::kObjective);
      if (kind == recipe::AdvantageKind::kStd) c.advantages = advantages;
    }
    for (const auto& [key, expected] : entry.items()) {
      if (!key.starts_with("policy_loss|")) continue;
      check_policy_loss(c, key, expected, all["clip_dual"].get<double>());
      ++policies;
    }
    const std::pair<const char*, recipe::KlEstimator> estimators[] = {
        {"kl|k1", recipe::KlEstimator::kK1},
        {"kl|k2", recipe::KlEstimator::kK2},
        {"kl|k3", recipe::KlEstimator::kLowVariance}};
    for (const auto& [name, estimator] : estimators) {
      Doubles values;
      for (size_t i = 0; i < c.new_logprobs.size(); ++i) {
        values.push_back(token_kl(estimator, c.new_logprobs[i], c.ref_logprobs[i]).value);
      }
      CAPTURE(name);
      CHECK(largest_difference(values, entry[name].get<Doubles>()) < tolerance::kObjective);
    }
  }
  CHECK(policies == 36);
}

TEST_CASE("derivatives equal central differences away from kinks") {
  const double h = 1e-6;
  const ClipRange clip{0.2, 0.28, 3.0};
  for (double advantage : {-1.5, -0.3, 0.0, 0.7}) {
    for (double d : {-25.0, -2.0, -0.21, 0.0, 0.1, 0.3, 1.05, 1.3, 21.0}) {
      CAPTURE(advantage, d);
      const auto loss = [&](double x) { return policy_loss(x, -1.0, advantage, clip).loss; };
      const double slope = (loss(-1.0 + d + h) - loss(-1.0 + d - h)) / (2.0 * h);
      const double derivative = policy_loss(-1.0 + d, -1.0, advantage, clip).derivative;
      CHECK(std::abs(slope - derivative) <= 1e-6 * std::max(1.0, std::abs(slope)));
    }
  }
  using recipe::KlEstimator;
  for (KlEstimator estimator :
       {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3, KlEstimator::kLowVariance}) {
    for (double d : {-30.0, -4.0, -1.0, 0.0, 0.5, 3.0, 25.0}) {
      CAPTURE(static_cast<int>(estimator), d);
      const auto kl = [&](double x) { return token_kl(estimator, x, -2.0).value; };
      const double slope = (kl(-2.0 + d + h) - kl(-2.0 + d - h)) / (2.0 * h);
      const double derivative = token_kl(estimator, -2.0 + d, -2.0).derivative;
      CHECK(std::abs(slope - derivative) <= 1e-5 * std::max(1.0, std::abs(slope)));
    }
  }
}

TEST_CASE("NaN stays NaN in the objective") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const ClipRange clip{0.2, 0.28, 3.0};
  CHECK(std::isnan(policy_loss(nan, -1.0, 1.0, clip).loss));
  CHECK(std::isnan(policy_loss(-1.0, nan, -1.0, clip).loss));
  CHECK(std::isnan(policy_loss(-1.0, -1.0, nan, clip).loss));
  CHECK(std::isnan(policy_loss(nan, -1.0, 1.0, clip).derivative));
  for (auto estimator : {recipe::KlEstimator::kK1, recipe::KlEstimator::kK2, recipe::KlEstimator::kK3,
                         recipe::KlEstimator::kLowVariance}) {
    CHECK(std::isnan(token_kl(estimator, nan, -1.0).value));
    CHECK(std::isnan(token_kl(estimator, nan, -1.0).derivative));
  }
  const Doubles rewards{1.0, nan, 0.0, 1.0};
  Doubles advantages(4);
  group_advantages(recipe::AdvantageKind::kStd, rewards, 2, advantages);
  CHECK(std::isnan(advantages[0]));
  CHECK(std::isnan(advantages[1]));
  CHECK(std::abs(advantages[3] - 0.5 / (std::sqrt(0.5) + 1e-6)) < 1e-12);
}

TEST_CASE("equal rewards and groups of one") {
  Doubles advantages(3);
  group_advantages(recipe::AdvantageKind::kStd, Doubles{1.0, 1.0, 1.0}, 3, advantages);
  CHECK(advantages == Doubles{0.0, 0.0, 0.0});
  group_advantages(recipe::AdvantageKind::kStd, Doubles{1.0, 0.0, 2.0}, 1, advantages);
  CHECK(advantages == Doubles{1.0 / (1.0 + 1e-6), 0.0, 2.0 / (1.0 + 1e-6)});
  group_advantages(recipe::AdvantageKind::kLeaveOneOut, Doubles{1.0, 0.0, 2.0}, 1, advantages);
  CHECK(advantages == Doubles{1.0, 0.0, 2.0});
}

}  // namespace accord::trainer
