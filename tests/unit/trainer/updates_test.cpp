// The objective's choices through whole optimizer steps, and several updates on the samples of one step.
#include "trainer/updates.hpp"

#include <algorithm>
#include <cmath>

#include "support/catch.hpp"
#include "trainer/objective.hpp"
#include "unit/trainer/fixture.hpp"

namespace accord::trainer {
namespace {

constexpr char kModel[] = "qwen3_moe";

TrainerOptions options_of(Dtype dtype) {
  TrainerOptions options;
  options.compute_dtype = dtype;
  options.optimizer.lr = 1e-2;
  options.optimizer.clip_grad = 0.0;
  return options;
}

// Responses of different lengths: aggregations agree on equal ones.
std::vector<TrainSample> uneven_samples() {
  auto samples = recorded_samples(kModel, 2);
  for (size_t s = 0; s < samples.size(); ++s) {
    const size_t length =
        std::max<size_t>(1, static_cast<size_t>(samples[s].response_length()) * (s + 1) / samples.size());
    samples[s].tokens.resize(static_cast<size_t>(samples[s].prompt_length) + length);
    samples[s].rollout_logprobs.resize(length);
  }
  return samples;
}

StepReport step_of(Fixture& f, std::span<const TrainSample> samples) {
  auto report = f.trainer->train_step(samples, 1);
  INFO(std::string(message_of(report.status())));
  REQUIRE(report.ok());
  return *report;
}

std::vector<float> gradients_of(Trainer& trainer) {
  std::vector<float> out;
  for (const ParamSpec& spec : trainer.parameters()) {
    const auto gradient = trainer.gradient(spec.name);
    out.insert(out.end(), gradient.begin(), gradient.end());
  }
  return out;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / norm);
}

void set_rollout(std::vector<TrainSample>& samples, const std::vector<std::vector<float>>& logprobs) {
  for (size_t s = 0; s < samples.size(); ++s) samples[s].rollout_logprobs = logprobs[s];
}

}  // namespace

TEST_CASE("aggregations weigh tokens over the whole batch whatever the packing") {
  const auto samples = uneven_samples();
  std::vector<double> losses;
  for (auto aggregate : {recipe::Aggregate::kTokenMean, recipe::Aggregate::kSeqMeanTokenMean,
                         recipe::Aggregate::kSeqMeanTokenSum}) {
    CAPTURE(static_cast<int>(aggregate));
    double loss = 0.0;
    std::vector<float> gradient;
    for (int64_t budget : {int64_t{1} << 20, int64_t{40}, int64_t{1}}) {
      TrainerOptions options = options_of(Dtype::kBF16);
      options.algorithm.aggregate = aggregate;
      options.algorithm.clip_dual = 3.0;
      options.tokens_per_microbatch = budget;
      Fixture f(kModel, options, mxfp8_everywhere());
      const StepReport report = step_of(f, samples);
      const double mine = report.metrics.at("train/loss");
      if (gradient.empty()) {
        CHECK(report.metrics.at("train/microbatches") == 1.0);
        // The sum by hand, from the step's own log-probs.
        double expected = 0.0;
        int64_t tokens = 0;
        for (const TrainSample& s : samples) tokens += s.response_length();
        for (size_t s = 0; s < samples.size(); ++s) {
          double sum = 0.0;
          for (size_t o = 0; o < report.logprobs[s].size(); ++o) {
            const double ratio =
                std::exp(static_cast<double>(report.logprobs[s][o]) - samples[s].rollout_logprobs[o]);
            const double a = samples[s].advantage;
            double token = std::max(-ratio * a, -std::clamp(ratio, 0.8, 1.28) * a);
            if (a < 0.0) token = std::min(token, -3.0 * a);
            sum += token;
          }
          const double n = static_cast<double>(report.logprobs[s].size());
          const double count = static_cast<double>(samples.size());
          expected += aggregate == recipe::Aggregate::kTokenMean          ? sum / static_cast<double>(tokens)
                      : aggregate == recipe::Aggregate::kSeqMeanTokenMean ? sum / n / count
                                                                          : sum / count;
        }
        CHECK(std::abs(mine - expected) < 1e-12 * std::max(1.0, std::abs(expected)));
        loss = mine;
        gradient = gradients_of(*f.trainer);
        losses.push_back(loss);
      } else {
        CHECK(report.metrics.at("train/microbatches") > 1.0);
        CHECK(std::abs(mine - loss) <= 1e-12 * std::max(1.0, std::abs(loss)));
        CHECK(relative_difference(gradients_of(*f.trainer), gradient) < 1e-5);
      }
    }
  }
  CHECK(std::abs(losses[0] - losses[1]) > 1e-6);
  CHECK(std::abs(losses[1] - losses[2]) > 1e-6);
}

TEST_CASE("an entropy bonus raises entropy") {
  auto samples = recorded_samples(kModel, 2);
  for (TrainSample& s : samples) s.advantage = 0.0;  // the bonus alone moves the weights
  const auto entropy_after = [&](double coefficient) {
    TrainerOptions options = options_of(Dtype::kF32);
    options.optimizer.lr = 1e-3;
    options.algorithm.entropy_coefficient = coefficient;
    Fixture f(kModel, options);
    const StepReport first = step_of(f, samples);
    CHECK(std::abs(first.metrics.at("train/loss") + coefficient * first.metrics.at("train/entropy")) < 1e-9);
    f.export_weights();
    return step_of(f, samples).metrics.at("train/entropy") - first.metrics.at("train/entropy");
  };
  CHECK(entropy_after(0.5) > 1e-3);
  CHECK(entropy_after(-0.5) < -1e-3);
}

TEST_CASE("importance correction: the trainer's own log-probs are the old ones") {
  TrainerOptions options = options_of(Dtype::kBF16);
  Fixture plain(kModel, options, mxfp8_everywhere());
  auto samples = recorded_samples(kModel, 2);
  const auto own = *plain.trainer->logprobs(samples);
  set_rollout(samples, own);
  const StepReport reference = step_of(plain, samples);

  options.algorithm.importance_correction = recipe::ImportanceCorrection::kTis;
  {
    Fixture f(kModel, options, mxfp8_everywhere());
    const auto refused = f.trainer->train_step(samples, 4);
    REQUIRE(!refused.ok());
    CHECK(std::string(message_of(refused.status())).find("step 4") != std::string::npos);
    // Equal log-probs: every weight is 1, and no bit differs from a step without correction.
    for (size_t s = 0; s < samples.size(); ++s) samples[s].old_logprobs = own[s];
    const StepReport same = step_of(f, samples);
    CHECK(same.metrics.at("train/importance_mean") == 1.0);
    CHECK(same.metrics.at("train/importance_clip_fraction") == 0.0);
    CHECK(same.metrics.at("train/loss") == reference.metrics.at("train/loss"));
    CHECK(gradients_of(*f.trainer) == gradients_of(*plain.trainer));
  }
  {
    // A sampler that made every token more likely by exp(0.5): weights are exp(-0.5), ratios stay 1.
    Fixture f(kModel, options, mxfp8_everywhere());
    for (TrainSample& s : samples) {
      for (float& lp : s.rollout_logprobs) lp += 0.5F;
    }
    const StepReport off = step_of(f, samples);
    const double weight = std::exp(-0.5);
    CHECK(std::abs(off.metrics.at("train/importance_mean") - weight) < 1e-6);
    CHECK(off.metrics.at("train/ppo_kl") == 0.0);
    CHECK(off.metrics.at("train/clip_fraction") == 0.0);
    CHECK(off.metrics.at("mismatch/equal_fraction") == 0.0);
    CHECK(std::abs(off.metrics.at("train/grad_norm") - weight * reference.metrics.at("train/grad_norm")) <
          1e-2 * reference.metrics.at("train/grad_norm"));
  }
  {
    Fixture f(kModel, options, mxfp8_everywhere());
    for (TrainSample& s : samples) {
      for (float& lp : s.rollout_logprobs) lp -= 2.0F;
    }
    const StepReport bounded = step_of(f, samples);
    CHECK(bounded.metrics.at("train/importance_mean") == 2.0);
    CHECK(bounded.metrics.at("train/importance_clip_fraction") == 1.0);
  }
  options.algorithm.importance_correction = recipe::ImportanceCorrection::kMis;
  {
    // Masked tokens teach nothing. Only the first sample keeps its own log-probs.
    Fixture f(kModel, options, mxfp8_everywhere());
    const StepReport none = step_of(f, samples);
    CHECK(none.metrics.at("train/importance_mean") == 0.0);
    CHECK(none.metrics.at("train/importance_clip_fraction") == 1.0);
    CHECK(none.metrics.at("train/loss") == 0.0);
    CHECK(none.metrics.at("train/grad_norm") == 0.0);
    Fixture g(kModel, options, mxfp8_everywhere());
    samples[0].rollout_logprobs = own[0];
    const StepReport some = step_of(g, samples);
    double tokens = 0.0;
    for (const TrainSample& s : samples) tokens += s.response_length();
    const double kept = samples[0].response_length() / tokens;
    CHECK(std::abs(some.metrics.at("train/importance_mean") - kept) < 1e-12);
    CHECK(std::abs(some.metrics.at("train/importance_clip_fraction") - (1.0 - kept)) < 1e-12);
    CHECK(std::abs(some.metrics.at("train/loss") + kept * samples[0].advantage) < 1e-12);
    CHECK(some.metrics.at("train/grad_norm") > 0.0);
  }
}

TEST_CASE("a step is split into batches of whole groups and none is dropped") {
  const auto sizes = [](int64_t samples, int64_t group, int64_t updates) {
    std::vector<size_t> out;
    size_t end = 0;
    for (const SampleRange& range : split_updates(samples, group, updates)) {
      CHECK(range.begin == end);
      end = range.begin + range.count;
      out.push_back(range.count);
    }
    CHECK(end == static_cast<size_t>(samples));
    return out;
  };
  CHECK(sizes(32, 8, 1) == std::vector<size_t>{32});
  CHECK(sizes(32, 8, 2) == std::vector<size_t>{16, 16});
  CHECK(sizes(40, 8, 2) == std::vector<size_t>{24, 16});
  CHECK(sizes(14, 2, 3) == std::vector<size_t>{6, 4, 4});
  CHECK(sizes(6, 2, 5) == std::vector<size_t>{2, 2, 2});
  CHECK(sizes(2, 2, 2) == std::vector<size_t>{2});
}

TEST_CASE("a second update on the same rollout sees ratios that moved") {
  TrainerOptions options = options_of(Dtype::kBF16);
  options.optimizer.schedule = recipe::Schedule::kLinear;
  options.total_steps = 10;
  Fixture f(kModel, options, mxfp8_everywhere());
  auto samples = recorded_samples(kModel, 2);
  set_rollout(samples, *f.trainer->logprobs(samples));
  std::vector<StepReport> reports;
  for (const SampleRange& range : split_updates(static_cast<int64_t>(samples.size()), 2, 2)) {
    if (!reports.empty()) f.export_weights();
    reports.push_back(step_of(f, std::span(samples).subspan(range.begin, range.count)));
  }
  REQUIRE(reports.size() == 2);
  CHECK(f.trainer->optimizer_steps() == 2);
  CHECK(reports[0].metrics.at("train/clip_fraction") == 0.0);
  CHECK(reports[0].metrics.at("train/ppo_kl") == 0.0);
  CHECK(reports[1].metrics.at("train/clip_fraction") > 0.0);
  CHECK(reports[1].metrics.at("train/ppo_kl") != 0.0);

  const Metrics both = combine_updates(reports);
  CHECK(both.size() == reports[0].metrics.size());
  CHECK(both.at("mismatch/equal_fraction") == 1.0);
  CHECK(both.at("train/microbatches") == 2.0);
  CHECK(both.at("train/learning_rate") == reports[1].metrics.at("train/learning_rate"));
  CHECK(both.at("train/learning_rate") < reports[0].metrics.at("train/learning_rate"));
  double tokens = 0.0, second = 0.0;
  for (size_t s = 0; s < samples.size(); ++s) {
    tokens += samples[s].response_length();
    if (s >= 2) second += samples[s].response_length();
  }
  const auto mean = [&](const char* name) {
    return 0.5 * (reports[0].metrics.at(name) + reports[1].metrics.at(name));
  };
  CHECK(std::abs(both.at("train/clip_fraction") -
                 reports[1].metrics.at("train/clip_fraction") * second / tokens) < 1e-12);
  CHECK(std::abs(both.at("train/loss") - mean("train/loss")) < 1e-12);
  CHECK(std::abs(both.at("train/grad_norm") - mean("train/grad_norm")) < 1e-12);
  CHECK(combine_updates(std::span(reports).first(1)) == reports[0].metrics);
}

}  // namespace accord::trainer
