// The loss of one token against libtorch's autograd in fp64, from the logits on; importance weights;
// penalties.
#include <torch/torch.h>

#include <cmath>
#include <limits>
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
      for (auto correction : {recipe::ImportanceCorrection::kNone, recipe::ImportanceCorrection::kTis}) {
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
              context.rollout_logprob = context.old_logprob + (token % 2 == 0 ? 0.4F : -0.3F);
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
  CHECK(moved == 360);
}

TEST_CASE("an importance weight is the bounded ratio of trainer and sampler") {
  CHECK(importance_weight(-1.25, -1.25) == 1.0);
  CHECK(std::abs(importance_weight(-1.0, -1.5) - std::exp(0.5)) < 1e-15);
  CHECK(std::abs(importance_weight(-3.0, -1.0) - std::exp(-2.0)) < 1e-15);
  CHECK(importance_weight(-1.0, -2.0) == 2.0);
  CHECK(importance_weight(-1.0, -1e9) == 2.0);
  CHECK(importance_weight(-1e9, -1.0) == 0.0);
  CHECK(std::isnan(importance_weight(std::numeric_limits<double>::quiet_NaN(), -1.0)));

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
