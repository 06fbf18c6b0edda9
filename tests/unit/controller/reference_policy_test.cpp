// The reference policy beside a trainer: equal bits where both are the same, KL terms, refusals.
#include "controller/reference_policy.hpp"

#include <cmath>

#include "support/catch.hpp"
#include "unit/trainer/fixture.hpp"

namespace accord::controller {
namespace {

using trainer::Fixture;
using trainer::recorded_samples;
using trainer::TrainerOptions;
using trainer::TrainSample;

std::string checkpoint_of(const std::string& model) { return std::string(ACCORD_TEST_DATA) + "/hf/" + model; }

recipe::Recipe recipe_of(const std::string& model) {
  recipe::Recipe recipe;
  recipe.model.checkpoint = checkpoint_of(model);
  recipe.algorithm.reference_kl = true;
  return recipe;
}

std::unique_ptr<ReferencePolicy> load(const recipe::Recipe& recipe, const ModelConfig& policy,
                                      int threads = 2) {
  auto reference = ReferencePolicy::load(*reference_of(recipe), recipe, policy, threads);
  INFO(std::string(message_of(reference.status())));
  REQUIRE(reference.ok());
  return *std::move(reference);
}

std::vector<TrainSample> samples_of(const std::string& model) {
  auto samples = recorded_samples(model, 2);
  samples[1].temperature = 0.7F;
  return samples;
}

trainer::StepReport step_of(Fixture& f, const std::vector<TrainSample>& samples) {
  auto report = f.trainer->train_step(samples, 1);
  INFO(std::string(message_of(report.status())));
  REQUIRE(report.ok());
  return *std::move(report);
}

std::vector<float> all_masters(Fixture& f) {
  std::vector<float> out;
  for (const ParamSpec& spec : f.trainer->parameters()) {
    const auto master = f.trainer->master(spec.name);
    out.insert(out.end(), master.begin(), master.end());
  }
  return out;
}

}  // namespace

TEST_CASE("a reference is loaded when something asks for it") {
  recipe::Recipe recipe;
  recipe.model.checkpoint = "models/policy";
  CHECK_FALSE(reference_of(recipe).has_value());
  recipe.algorithm.reference_kl = true;
  CHECK(reference_of(recipe) == std::optional<std::string>("models/policy"));
  recipe.algorithm.reference_kl = false;
  recipe.algorithm.kl_coefficient = 0.1;
  CHECK(reference_of(recipe) == std::optional<std::string>("models/policy"));
  recipe.model.reference = "models/other";
  CHECK(reference_of(recipe) == std::optional<std::string>("models/other"));
}

TEST_CASE("a reference with the policy's weights has its bits, however samples are packed") {
  for (const char* model : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"}) {
    CAPTURE(model);
    TrainerOptions options;
    options.compute_dtype = Dtype::kBF16;
    Fixture f(model, options);
    auto samples = samples_of("qwen3_moe");  // the small models share a vocabulary
    const auto own = *f.trainer->logprobs(samples);
    recipe::Recipe recipe = recipe_of(model);
    for (int64_t budget : {1 << 20, 1, 40}) {
      for (int threads : {1, 3}) {
        CAPTURE(budget, threads);
        recipe.trainer.tokens_per_microbatch = budget;
        for (TrainSample& s : samples) s.ref_logprobs.clear();
        REQUIRE(load(recipe, f.config, threads)->fill(samples).ok());
        for (size_t i = 0; i < samples.size(); ++i) CHECK(samples[i].ref_logprobs == own[i]);
      }
    }
    CHECK(step_of(f, samples).metrics.at("train/ref_kl") == 0.0);
  }
}

TEST_CASE("a KL term against equal weights has no distance, and with a weight of 0 it changes no bit") {
  TrainerOptions options;
  options.compute_dtype = Dtype::kBF16;
  auto samples = samples_of("qwen3_moe");
  Fixture plain("qwen3_moe", options);
  const auto own = *plain.trainer->logprobs(samples);
  for (size_t i = 0; i < samples.size(); ++i) samples[i].rollout_logprobs = own[i];
  const auto report = step_of(plain, samples);
  CHECK(report.metrics.count("train/ref_kl") == 0);
  const auto masters = all_masters(plain);

  auto measured = samples;
  REQUIRE(load(recipe_of("qwen3_moe"), plain.config)->fill(measured).ok());
  Fixture diagnostic("qwen3_moe", options);
  const auto with = step_of(diagnostic, measured);
  CHECK(with.metrics.at("train/ref_kl") == 0.0);
  CHECK(with.metrics.at("train/loss") == report.metrics.at("train/loss"));
  CHECK(all_masters(diagnostic) == masters);

  // Away from the reference the distance is seen by every estimator, and pulls back with a weight.
  diagnostic.export_weights();
  double k1 = 0.0;
  for (auto estimator : {recipe::KlEstimator::kK1, recipe::KlEstimator::kK2, recipe::KlEstimator::kK3,
                         recipe::KlEstimator::kLowVariance}) {
    options.algorithm.kl_estimator = estimator;
    options.algorithm.kl_coefficient = 0.5;
    options.optimizer.lr = 0.0;
    Fixture f("qwen3_moe", options);
    for (const ParamSpec& spec : f.trainer->parameters()) {
      const auto from = diagnostic.trainer->master(spec.name);
      const auto to = f.trainer->master(spec.name);
      for (size_t i = 0; i < from.size(); ++i) to[i] = from[i] * (spec.shape.size() > 1 ? 1.05F : 1.0F);
    }
    f.export_weights();
    const auto moved = *f.trainer->logprobs(measured);
    auto on_policy = measured;
    double expected = 0.0, tokens = 0.0, policy = 0.0;
    for (size_t i = 0; i < on_policy.size(); ++i) {
      on_policy[i].rollout_logprobs = moved[i];
      for (size_t o = 0; o < moved[i].size(); ++o) {
        const double d = static_cast<double>(moved[i][o]) - measured[i].ref_logprobs[o];
        expected += estimator == recipe::KlEstimator::kK1   ? d
                    : estimator == recipe::KlEstimator::kK2 ? 0.5 * d * d
                                                            : std::exp(-d) - 1.0 + d;
        policy -= on_policy[i].advantage;
        tokens += 1.0;
      }
    }
    CAPTURE(static_cast<int>(estimator), expected / tokens);
    const auto far = step_of(f, on_policy);
    CHECK(std::abs(expected / tokens) > 1e-6);
    CHECK(std::abs(far.metrics.at("train/ref_kl") - expected / tokens) < 1e-12);
    CHECK(std::abs(far.metrics.at("train/loss") - (policy + 0.5 * expected) / tokens) < 1e-12);
    k1 = estimator == recipe::KlEstimator::kK1 ? expected / tokens : k1;
  }
  CHECK(k1 != 0.0);
}

TEST_CASE("a reference that does not fit the policy is refused with both named") {
  const auto refused = [](const recipe::Recipe& recipe, const ModelConfig& policy, const std::string& word) {
    const auto reference = ReferencePolicy::load(*reference_of(recipe), recipe, policy, 1);
    REQUIRE(!reference.ok());
    const std::string message(message_of(reference.status()));
    CAPTURE(message, word);
    CHECK(exit_code(reference.status()) == ExitCode::kBadData);
    CHECK(message.find("model.reference: ") == 0);
    CHECK(message.find(word) != std::string::npos);
  };
  const ModelConfig policy = checkpoint::HfCheckpoint::open(checkpoint_of("qwen3_moe"))->config();
  recipe::Recipe recipe = recipe_of("qwen3_moe");
  recipe.model.reference = checkpoint_of("llama_tied");
  refused(recipe, policy,
          "is Llama with 320 tokens, the policy " + checkpoint_of("qwen3_moe") + " is Qwen3-MoE");
  recipe.model.reference = checkpoint_of("qwen3_moe");
  ModelConfig wide = policy;
  wide.vocab_size = 321;
  refused(recipe, wide, "is Qwen3-MoE with 320 tokens");
  recipe.model.reference = "no/such/directory";
  const auto missing = ReferencePolicy::load(*reference_of(recipe), recipe, policy, 1);
  CHECK(std::string(message_of(missing.status())).find("model.reference: ") == 0);

  auto samples = samples_of("qwen3_moe");
  samples[0].tokens.resize(static_cast<size_t>(policy.max_position_embeddings) + 2, 1);
  const Status status = load(recipe_of("qwen3_moe"), policy)->fill(samples);
  CHECK(std::string(message_of(status)).find("sample 0 of prompt 0") != std::string::npos);
  for (const TrainSample& s : samples) CHECK(s.ref_logprobs.empty());
}

}  // namespace accord::controller
