// The loss of one token against libtorch's autograd in fp64, from the logits on; importance weights;
// penalties.
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

// torch's logging macros and Catch2's share names; ours come last.
#undef CHECK
#include "base/philox.hpp"
#include "kernels/logprob/logprob.hpp"
#include "kernels/logprob/logprob_backward.hpp"
#include "support/catch.hpp"
#include "trainer/objective.hpp"
#include "trainer/token_objective.hpp"
#include "unit/trainer/tolerance.hpp"

namespace accord::trainer {
namespace {

using torch::Tensor;

constexpr double kWeight = 1.0 / 7.0;
constexpr float kTemperature = 0.8F;

// The whole loss of a token in torch's words.
Tensor torch_loss(const Tensor& logits, int64_t token, const recipe::AlgorithmPart& a,
                  const TokenContext& context) {
  const Tensor log_p = torch::log_softmax(logits / static_cast<double>(kTemperature), -1);
  const Tensor entropy = -(log_p.exp() * log_p).sum();
  const Tensor ratio = torch::exp(log_p[token] - static_cast<double>(context.old_logprob));
  const Tensor plain = -ratio * context.advantage;
  const Tensor clipped = -torch::clamp(ratio, 1.0 - a.clip_low, 1.0 + a.clip_high) * context.advantage;
  Tensor loss = torch::max(plain, clipped);
  if (a.clip_dual && context.advantage < 0.0) {
    loss = torch::min(loss, torch::full_like(loss, -*a.clip_dual * context.advantage));
  }
  if (a.importance_correction == recipe::ImportanceCorrection::kTis) {
    const double d = static_cast<double>(context.old_logprob) - context.rollout_logprob;
    loss = loss * std::min(std::exp(d), 2.0);
  }
  if (a.importance_correction == recipe::ImportanceCorrection::kMis) {
    const double d = static_cast<double>(context.old_logprob) - context.rollout_logprob;
    loss = loss * (std::abs(d) <= std::log(2.0) ? std::exp(d) : 0.0);
  }
  if (context.ref_logprob) {
    const Tensor d = log_p[token] - static_cast<double>(*context.ref_logprob);
    loss = loss + a.kl_coefficient * (torch::exp(-d) - 1.0 + d);
  }
  return kWeight * (loss - a.entropy_coefficient * entropy);
}

// Largest difference of loss and of the gradient's relative error.
void check_token(const Tensor& logits, int32_t token, const recipe::AlgorithmPart& algorithm,
                 TokenContext context) {
  const int64_t vocab = logits.size(0);
  const kernels::SoftmaxStats stats = kernels::softmax_stats(logits.data_ptr<float>(), vocab, kTemperature);
  TokenValue value;
  value.logprob = kernels::token_logprob(stats, logits.data_ptr<float>()[token], kTemperature);
  value.entropy = kernels::softmax_entropy(logits.data_ptr<float>(), vocab, kTemperature, stats);
  Tensor x = logits.to(torch::kFloat64).clone().set_requires_grad(true);
  const Tensor loss = torch_loss(x, token, algorithm, context);
  loss.backward();
  TokenRecord record;
  const TokenGradient gradient = token_objective(algorithm, context, value, record);
  Tensor d = logits.clone();
  kernels::logprob_backward(d.data_ptr<float>(), vocab, kTemperature, stats, token, value.entropy,
                            static_cast<float>(gradient.dlogprob), static_cast<float>(gradient.dentropy));
  CHECK(std::abs(record.loss - loss.item<double>()) < 1e-5 * std::max(1.0, std::abs(loss.item<double>())));
  const double norm = x.grad().norm().item<double>();
  const double error = (d.to(torch::kFloat64) - x.grad()).norm().item<double>();
  CAPTURE(norm, error);
  CHECK(error <= tolerance::kOp * norm + 1e-9);
}

}  // namespace

TEST_CASE("the gradient of a token's whole loss equals autograd from the logits on") {
  PhiloxStream random(7, 3);
  int moved = 0;
  for (int64_t vocab : {31, 320}) {
    Tensor logits = torch::empty({vocab}, torch::kFloat32);
    for (int64_t i = 0; i < vocab; ++i)
      logits.data_ptr<float>()[i] = static_cast<float>(random.next_normal() * 2.0);
    const int32_t token = static_cast<int32_t>(random.next_below(static_cast<uint64_t>(vocab)));
    const kernels::SoftmaxStats stats = kernels::softmax_stats(logits.data_ptr<float>(), vocab, kTemperature);
    const float logprob = kernels::token_logprob(stats, logits.data_ptr<float>()[token], kTemperature);
    for (double entropy : {0.0, 0.05, -0.3}) {
      for (auto correction : {recipe::ImportanceCorrection::kNone, recipe::ImportanceCorrection::kTis,
                              recipe::ImportanceCorrection::kMis}) {
        for (float d : {-0.9F, -0.1F, 0.0F, 0.15F, 1.5F}) {  // new - old
          for (double advantage : {-1.3, 0.0, 0.7}) {
            for (bool reference : {false, true}) {
              recipe::AlgorithmPart algorithm;
              algorithm.entropy_coefficient = entropy;
              algorithm.importance_correction = correction;
              algorithm.clip_dual = 3.0;
              algorithm.kl_coefficient = reference ? 0.2 : 0.0;
              TokenContext context;
              context.old_logprob = logprob - d;
              // Inside the bounds of every correction, above them and below them.
              context.rollout_logprob = context.old_logprob + (moved % 3 == 0   ? 0.4F
                                                               : moved % 3 == 1 ? -0.8F
                                                                                : 0.9F);
              if (reference) context.ref_logprob = logprob + 0.6F;
              context.advantage = advantage;
              context.weight = kWeight;
              CAPTURE(vocab, entropy, static_cast<int>(correction), d, advantage, reference);
              check_token(logits, token, algorithm, context);
              ++moved;
            }
          }
        }
      }
    }
  }
  CHECK(moved == 540);
}

TEST_CASE("an importance weight is the bounded ratio of trainer and sampler") {
  const auto importance = [](double old_logprob, double rollout_logprob) {
    return importance_weight(recipe::ImportanceCorrection::kTis, old_logprob, rollout_logprob).weight;
  };
  CHECK(importance(-1.25, -1.25) == 1.0);
  CHECK(std::abs(importance(-1.0, -1.5) - std::exp(0.5)) < 1e-15);
  CHECK(std::abs(importance(-3.0, -1.0) - std::exp(-2.0)) < 1e-15);
  CHECK(importance(-1.0, -2.0) == 2.0);
  CHECK(importance(-1.0, -1e9) == 2.0);
  CHECK(importance(-1e9, -1.0) == 0.0);
  CHECK(std::isnan(importance(std::numeric_limits<double>::quiet_NaN(), -1.0)));

  // A weight of one changes no bit; another one scales loss and derivative.
  TokenContext context;
  context.old_logprob = context.rollout_logprob = -1.5F;
  context.advantage = 0.7;
  context.weight = kWeight;
  const TokenValue value{-1.4F, 2.0F};
  recipe::AlgorithmPart plain, corrected;
  corrected.importance_correction = recipe::ImportanceCorrection::kTis;
  TokenRecord a, b;
  const TokenGradient ga = token_objective(plain, context, value, a);
  const TokenGradient gb = token_objective(corrected, context, value, b);
  CHECK(a.loss == b.loss);
  CHECK(ga.dlogprob == gb.dlogprob);
  CHECK(b.importance == 1.0);
  context.rollout_logprob = -2.0F;
  const TokenGradient gc = token_objective(corrected, context, value, b);
  CHECK(std::abs(b.importance - std::exp(0.5)) < 1e-15);
  CHECK(std::abs(b.loss - a.loss * std::exp(0.5)) < 1e-15);
  CHECK(std::abs(gc.dlogprob - ga.dlogprob * std::exp(0.5)) < 1e-15);
}

TEST_CASE("masked importance weights keep ratios within a factor of two") {
  const auto of = [](double ratio) {
    return importance_weight(recipe::ImportanceCorrection::kMis, std::log(ratio) - 3.0, -3.0);
  };
  const auto equal = importance_weight(recipe::ImportanceCorrection::kMis, -1.25, -1.25);
  CHECK(equal.weight == 1.0);
  CHECK(!equal.bounded);
  for (double inside : {0.5001, 0.75, 1.25, 1.9999}) {
    CAPTURE(inside);
    CHECK(std::abs(of(inside).weight - inside) < 1e-12);
    CHECK(!of(inside).bounded);
  }
  for (double outside : {0.0, 1e-9, 0.4999, 2.0001, 1e9}) {
    CAPTURE(outside);
    CHECK(of(outside).weight == 0.0);
    CHECK(of(outside).bounded);
  }
  const auto nan =
      importance_weight(recipe::ImportanceCorrection::kMis, std::numeric_limits<double>::quiet_NaN(), -1.0);
  CHECK(std::isnan(nan.weight));

  // Truncation and masking over the same four tokens, by hand: ratios 1, 3/2, 3 and 1/4.
  for (auto [correction, weights, bounded] :
       {std::tuple{recipe::ImportanceCorrection::kTis, std::vector<double>{1.0, 1.5, 2.0, 0.25}, 0.25},
        std::tuple{recipe::ImportanceCorrection::kMis, std::vector<double>{1.0, 1.5, 0.0, 0.0}, 0.5}}) {
    recipe::AlgorithmPart algorithm;
    algorithm.importance_correction = correction;
    std::vector<TokenRecord> records;
    for (double ratio : {1.0, 1.5, 3.0, 0.25}) {
      TokenContext context;
      context.old_logprob = -1.0F;
      context.rollout_logprob = static_cast<float>(-1.0 - std::log(ratio));
      context.advantage = 0.5;
      context.weight = 0.25;
      TokenGradient gradient = token_objective(algorithm, context, {-1.0F, 2.0F}, records.emplace_back());
      // On policy the loss is -A w / n, and so is its derivative.
      const double expected = -0.125 * weights[records.size() - 1];
      CHECK(std::abs(records.back().loss - expected) < 1e-7);
      CHECK(std::abs(gradient.dlogprob - expected) < 1e-7);
      // Off policy, against a difference of the loss.
      const auto loss_at = [&](float logprob) {
        TokenRecord moved;
        token_objective(algorithm, context, {logprob, 2.0F}, moved);
        return moved.loss;
      };
      TokenRecord at;
      constexpr float kStep = 0x1p-10F;
      gradient = token_objective(algorithm, context, {-0.875F, 2.0F}, at);
      const double difference = (loss_at(-0.875F + kStep) - loss_at(-0.875F - kStep)) / (2.0 * kStep);
      CHECK(std::abs(gradient.dlogprob - difference) < 1e-6);
    }
    const Metrics metrics = token_metrics(records, false, true);
    double mean = 0.0;
    for (double weight : weights) mean += 0.25 * weight;
    CHECK(std::abs(metrics.at("train/importance_mean") - mean) < 1e-7);
    CHECK(metrics.at("train/importance_clip_fraction") == bounded);
  }
}

TEST_CASE("the penalty for overlong responses is linear over the buffer") {
  const recipe::OverlongPenalty penalty{4, 0.5};
  const auto of = [&](int64_t length, bool truncated) {
    return overlong_penalty(penalty, length, 20, truncated);
  };
  CHECK(of(1, false) == 0.0);
  CHECK(of(16, false) == 0.0);
  CHECK(of(17, false) == -0.125);
  CHECK(of(18, false) == -0.25);
  CHECK(of(19, false) == -0.375);
  CHECK(of(20, false) == -0.5);
  CHECK(of(20, true) == -0.5);
  CHECK(of(12, true) == -0.5);  // cut off by another limit
  CHECK(overlong_penalty({20, 1.0}, 5, 20, false) == -0.25);
}

TEST_CASE("groups of equal rewards are left out whole") {
  const std::vector<double> rewards{1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0, -1.0, -0.5};
  CHECK(samples_that_vary(rewards, 3) == std::vector<size_t>{3, 4, 5, 9, 10, 11});
  CHECK(samples_that_vary(std::vector<double>{1.0, 1.0, 0.0, 0.0}, 2).empty());
  CHECK(samples_that_vary(std::vector<double>{0.25, 0.75}, 2) == std::vector<size_t>{0, 1});
}

}  // namespace accord::trainer
