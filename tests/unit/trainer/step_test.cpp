// Whole optimizer steps: against recorded ones, and against themselves under other packings and threads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/forward.hpp"
#include "support/catch.hpp"
#include "trainer/packing.hpp"
#include "trainer/samples.hpp"
#include "unit/trainer/fixture.hpp"
#include "unit/trainer/tolerance.hpp"

namespace accord::trainer {
namespace {

TrainerOptions reference_options() {
  TrainerOptions options;
  options.compute_dtype = Dtype::kF32;
  options.optimizer.lr = 1e-2;
  options.tokens_per_microbatch = 1 << 20;
  return options;
}

// One parameter's values in a file that holds a layer's experts fused.
std::vector<float> unfused(const checkpoint::SafetensorsFile& file, const std::string& prefix,
                           const ParamSpec& spec) {
  if (spec.expert < 0) return read_tensor(file, prefix + spec.name);
  const std::string base = prefix + spec.name.substr(0, spec.name.find(".experts.") + 9);
  const bool down = spec.role == ParamRole::kDown;
  const std::vector<float> all = read_tensor(file, base + (down ? "down_proj" : "gate_up_proj"));
  const int64_t size = spec.numel();
  const int64_t begin =
      down ? spec.expert * size : spec.expert * 2 * size + (spec.role == ParamRole::kUp ? size : 0);
  return {all.begin() + begin, all.begin() + begin + size};
}

double relative_frobenius(std::span<const float> mine, std::span<const float> reference) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < mine.size(); ++i) {
    const double d = static_cast<double>(mine[i]) - reference[i];
    error += d * d;
    norm += static_cast<double>(reference[i]) * reference[i];
  }
  return norm == 0.0 ? std::sqrt(error) : std::sqrt(error / norm);
}

std::vector<float> all_masters(Trainer& trainer) {
  std::vector<float> out;
  for (const ParamSpec& spec : trainer.parameters()) {
    const auto master = trainer.master(spec.name);
    out.insert(out.end(), master.begin(), master.end());
  }
  return out;
}

StepReport step_of(Fixture& f, std::span<const TrainSample> samples, uint64_t step = 1) {
  auto report = f.trainer->train_step(samples, step);
  INFO(std::string(message_of(report.status())));
  REQUIRE(report.ok());
  return *report;
}

void check_recorded_step(const std::string& model) {
  CAPTURE(model);
  Fixture f(model, reference_options());
  const auto samples = recorded_samples(model, 2);
  const auto golden = *checkpoint::SafetensorsFile::open(f.dir + "/golden.safetensors");
  const auto recorded = *checkpoint::SafetensorsFile::open(f.dir + "/step.safetensors");
  const std::vector<float> advantages = read_tensor(golden, "step.advantages");
  for (size_t b = 0; b < samples.size(); ++b) CHECK(std::abs(samples[b].advantage - advantages[b]) < 1e-6);

  const StepReport report = step_of(f, samples);
  const auto scalar = [&](const char* name) { return static_cast<double>(read_tensor(golden, name)[0]); };
  const double loss = report.metrics.at("train/loss"), norm = report.metrics.at("train/grad_norm");
  CAPTURE(loss, scalar("step.loss"), norm, scalar("step.grad_norm"));
  CHECK(std::abs(loss - scalar("step.loss")) <= tolerance::kStepScalar * std::abs(scalar("step.loss")));
  CHECK(std::abs(norm - scalar("step.grad_norm")) <= tolerance::kStepScalar * scalar("step.grad_norm"));
  CHECK(std::abs(report.metrics.at("train/clip_fraction") - scalar("step.clip_fraction")) < 1e-6);
  const std::vector<float> logprobs = read_tensor(golden, "step.logprobs");
  const size_t width = logprobs.size() / samples.size();
  for (size_t b = 0; b < samples.size(); ++b) {
    for (size_t o = 0; o < report.logprobs[b].size(); ++o) {
      const float expected = logprobs[b * width + static_cast<size_t>(samples[b].prompt_length) - 1 + o];
      CHECK(std::abs(report.logprobs[b][o] - expected) < 1e-4);
    }
  }
  int64_t compared = 0;
  for (const ParamSpec& spec : f.trainer->parameters()) {
    CAPTURE(spec.name);
    const std::vector<float> gradient = unfused(recorded, "clipped_grad.", spec);
    const auto mine = f.trainer->gradient(spec.name);
    REQUIRE(mine.size() == gradient.size());
    CHECK(relative_frobenius(mine, gradient) <= tolerance::kStepGradient);
    if (spec.shape.size() < 2) continue;  // the recorded step decays norms, accord does not
    const std::vector<float> updated = unfused(recorded, "updated.", spec);
    const auto master = f.trainer->master(spec.name);
    double worst = 0.0;
    for (size_t i = 0; i < updated.size(); ++i) {
      if (std::abs(gradient[i]) <= 1e-5F) continue;
      worst = std::max(worst, std::abs(static_cast<double>(master[i]) - updated[i]));
      ++compared;
    }
    CHECK(worst <= tolerance::kStepUpdate);
  }
  CHECK(compared > 10000);
}

}  // namespace

TEST_CASE("recorded step of a mixture of experts") { check_recorded_step("qwen3_moe"); }
TEST_CASE("recorded step of a dense model with tied embeddings") { check_recorded_step("qwen3_dense_tied"); }

TEST_CASE("low-precision gradients stay near the float32 ones") {
  // Supervised: the policy loss has kinks, where tokens change sides.
  std::vector<SftSample> samples;
  for (const auto& s : recorded_samples("qwen3_dense_tied", 2))
    samples.push_back({s.tokens, s.prompt_length});
  const auto gradient_of = [&](Dtype dtype, const recipe::PrecisionPart& precision) {
    TrainerOptions options = reference_options();
    options.compute_dtype = dtype;
    Fixture f("qwen3_dense_tied", options, precision);
    REQUIRE(f.trainer->sft_step(samples, 1).ok());
    std::vector<float> out;
    for (const ParamSpec& spec : f.trainer->parameters()) {
      const auto g = f.trainer->gradient(spec.name);
      out.insert(out.end(), g.begin(), g.end());
    }
    return out;
  };
  const auto exact = gradient_of(Dtype::kF32, {});
  const double bf16 = relative_frobenius(gradient_of(Dtype::kBF16, {}), exact);
  const double mxfp8 = relative_frobenius(gradient_of(Dtype::kBF16, mxfp8_everywhere()), exact);
  CAPTURE(bf16, mxfp8);
  CHECK(bf16 > 0.0);
  CHECK(bf16 < tolerance::kBf16Gradient);
  CHECK(mxfp8 > bf16);
  CHECK(mxfp8 < tolerance::kMxfp8Gradient);
}

TEST_CASE("packing, kept tapes and threads") {
  for (const char* model : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"}) {
    CAPTURE(model);
    auto samples = recorded_samples("qwen3_moe", 2);  // the small models share a vocabulary
    const auto run = [&](int64_t budget, int64_t activation_bytes, int threads) {
      TrainerOptions options = reference_options();
      options.compute_dtype = Dtype::kBF16;
      options.tokens_per_microbatch = budget;
      options.activation_bytes = activation_bytes;
      Fixture f(model, options, mxfp8_everywhere(), threads);
      const StepReport report = step_of(f, samples);
      std::vector<float> gradient;
      for (const ParamSpec& spec : f.trainer->parameters()) {
        const auto g = f.trainer->gradient(spec.name);
        gradient.insert(gradient.end(), g.begin(), g.end());
      }
      return std::tuple(report, gradient, all_masters(*f.trainer));
    };
    const auto [report, gradient, masters] = run(1 << 20, 1 << 30, 2);
    SECTION(std::string("recomputation and threads change no bit: ") + model) {
      for (int64_t bytes : {int64_t{0}, int64_t{150000}}) {
        for (int threads : {1, 3}) {
          const auto [report2, gradient2, masters2] = run(1 << 20, bytes, threads);
          CHECK(gradient2 == gradient);
          CHECK(masters2 == masters);
          CHECK(report2.logprobs == report.logprobs);
          CHECK(report2.metrics == report.metrics);
        }
      }
    }
    SECTION(std::string("micro-batches change no forward bit and gradients by rounding only: ") + model) {
      for (int64_t budget : {int64_t{1}, int64_t{40}}) {
        const auto [report2, gradient2, masters2] = run(budget, 1 << 30, 2);
        CHECK(report2.logprobs == report.logprobs);
        CHECK(std::abs(report2.metrics.at("train/loss") - report.metrics.at("train/loss")) < 1e-12);
        CHECK(relative_frobenius(gradient2, gradient) < 1e-5);
      }
    }
  }
}

TEST_CASE("log-probs of a step are those of a forward, and metrics see equality") {
  TrainerOptions options = reference_options();
  options.compute_dtype = Dtype::kBF16;
  Fixture f("qwen3_moe", options, mxfp8_everywhere());
  auto samples = recorded_samples("qwen3_moe", 2);
  samples[1].temperature = 0.7F;
  const auto logprobs = *f.trainer->logprobs(samples);
  for (size_t s = 0; s < samples.size(); ++s) samples[s].rollout_logprobs = logprobs[s];
  StepReport report = step_of(f, samples);
  CHECK(report.logprobs == logprobs);
  CHECK(report.metrics.at("mismatch/equal_fraction") == 1.0);
  CHECK(report.metrics.at("mismatch/logprob_abs_diff_max") == 0.0);
  CHECK(report.metrics.at("mismatch/ess_ratio") == 1.0);
  CHECK(report.metrics.at("train/clip_fraction") == 0.0);
  // New weights: equality is gone and every figure notices.
  f.export_weights();
  report = step_of(f, samples, 2);
  CHECK(report.metrics.at("mismatch/equal_fraction") < 0.5);
  CHECK(report.metrics.at("mismatch/logprob_abs_diff_max") > 0.0);
  CHECK(report.metrics.at("mismatch/ess_ratio") < 1.0);
  CHECK(report.metrics.at("mismatch/kl_k3") > 0.0);
}

TEST_CASE("supervised steps and policy steps lower their losses") {
  TrainerOptions options = reference_options();
  options.compute_dtype = Dtype::kBF16;
  Fixture f("qwen3_moe", options, mxfp8_everywhere());
  const auto samples = recorded_samples("qwen3_moe", 2);
  std::vector<SftSample> sft;
  for (const auto& s : samples) sft.push_back({s.tokens, s.prompt_length});
  double first = 0.0, last = 0.0;
  for (uint64_t step = 0; step < 8; ++step) {
    const auto report = f.trainer->sft_step(sft, step);
    REQUIRE(report.ok());
    last = report->metrics.at("train/loss");
    if (step == 0) first = last;
    f.export_weights();
  }
  CHECK(last < 0.5 * first);
  // The mean of the first loss is minus the mean log-prob.
  Fixture fresh("qwen3_moe", options, mxfp8_everywhere());
  double sum = 0.0, count = 0.0;
  const auto logprobs = *fresh.trainer->logprobs(samples);
  for (const auto& row : logprobs) {
    for (float lp : row) {
      sum -= lp;
      count += 1.0;
    }
  }
  CHECK(std::abs(first - sum / count) < 1e-9);
}

TEST_CASE("gradients of entropy and KL terms equal differences of the loss") {
  TrainerOptions options = reference_options();
  options.optimizer.lr = 0.0;
  options.optimizer.clip_grad = 0.0;
  options.algorithm.entropy_coefficient = 0.3;
  options.algorithm.kl_coefficient = 0.4;
  for (auto aggregate : {recipe::Aggregate::kTokenMean, recipe::Aggregate::kSeqMeanTokenMean,
                         recipe::Aggregate::kSeqMeanTokenSum}) {
    options.algorithm.aggregate = aggregate;
    Fixture f("qwen3_dense_tied", options);
    auto samples = recorded_samples("qwen3_dense_tied", 2);
    for (auto& s : samples) {
      s.temperature = 0.8F;
      s.ref_logprobs = s.rollout_logprobs;
      for (float& lp : s.ref_logprobs) lp -= 0.2F;
    }
    step_of(f, samples);
    // The weights enter as bf16, so that a direction of whole bf16 steps is used: scaling final norm by 2^-7
    // steps.
    const auto norm = f.trainer->master("model.norm.weight");
    std::vector<float> direction(norm.size()), start(norm.begin(), norm.end());
    double slope = 0.0;
    const auto gradient = f.trainer->gradient("model.norm.weight");
    for (size_t i = 0; i < norm.size(); ++i) {
      direction[i] = (i % 3 == 0 ? 1.0F : -1.0F) * std::ldexp(1.0F, std::ilogb(start[i]) - 6);
      slope += static_cast<double>(gradient[i]) * direction[i];
    }
    const auto loss_at = [&](float t) {
      for (size_t i = 0; i < norm.size(); ++i) norm[i] = start[i] + t * direction[i];
      f.export_weights();
      return step_of(f, samples).metrics.at("train/loss");
    };
    const double difference = (loss_at(1.0F) - loss_at(-1.0F)) / 2.0;
    CAPTURE(static_cast<int>(aggregate), slope, difference);
    CHECK(std::abs(slope - difference) < 0.02 * std::abs(slope));
  }
}

TEST_CASE("a step that cannot be taken changes nothing and names the reason") {
  Fixture f("qwen3_moe", reference_options());
  auto samples = recorded_samples("qwen3_moe", 2);
  const std::vector<float> before = all_masters(*f.trainer);
  const auto refused = [&](const std::string& word) {
    const auto report = f.trainer->train_step(samples, 9);
    REQUIRE(!report.ok());
    const std::string message(message_of(report.status()));
    CAPTURE(message, word);
    CHECK(message.find(word) != std::string::npos);
    CHECK(exit_code(report.status()) == ExitCode::kBadData);
    CHECK(all_masters(*f.trainer) == before);
    CHECK(f.trainer->optimizer_steps() == 0);
    samples = recorded_samples("qwen3_moe", 2);
  };
  samples[2].advantage = std::numeric_limits<double>::quiet_NaN();
  refused("step 9: the loss of sample 2");
  samples[1].tokens[3] = 320;
  refused("token 320");
  samples[1].rollout_logprobs.pop_back();
  refused("rollout log-probs");
  samples[0].temperature = 0.0F;
  refused("temperature");
  samples[0].prompt_length = static_cast<int32_t>(samples[0].tokens.size());
  refused("no response token");
  // A gradient that overflows.
  samples[0].advantage = 1e300;
  refused("step 9");
  REQUIRE(f.trainer->train_step(samples, 9).ok());
  CHECK(all_masters(*f.trainer) != before);
}

TEST_CASE("saved state continues a run bit for bit") {
  TrainerOptions options = reference_options();
  options.compute_dtype = Dtype::kBF16;
  const auto samples = recorded_samples("qwen3_moe", 2);
  Fixture a("qwen3_moe", options, mxfp8_everywhere());
  step_of(a, samples, 1);
  a.export_weights();
  Fixture b("qwen3_moe", options, mxfp8_everywhere());
  const auto from = a.trainer->state();
  const auto to = b.trainer->state();
  REQUIRE(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    REQUIRE(to[i].write(values_of(from[i])).ok());
    CHECK(!to[i].write(std::vector<float>(static_cast<size_t>(to[i].numel) + 1)).ok());
  }
  b.trainer->set_optimizer_steps(a.trainer->optimizer_steps());
  b.export_weights();
  step_of(a, samples, 2);
  step_of(b, samples, 2);
  CHECK(all_masters(*a.trainer) == all_masters(*b.trainer));
}

TEST_CASE("experts without tokens get no gradient, and replayed routing is followed") {
  TrainerOptions options = reference_options();
  options.algorithm.routing_replay = true;
  Fixture f("qwen3_moe", options);
  auto samples = recorded_samples("qwen3_moe", 2);
  const size_t per_token = static_cast<size_t>(f.config.num_layers * f.config.num_experts_per_token);
  for (auto& s : samples) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < (s.tokens.size() - 1) * per_token; ++i) ids.push_back(static_cast<int32_t>(i % 2));
    s.routing = pack_expert_ids(ids, f.config.num_experts);
  }
  const StepReport report = step_of(f, samples);
  CHECK(report.metrics.at("mismatch/expert_overlap") > 0.0);
  CHECK(report.metrics.at("mismatch/expert_overlap") < 1.0);
  for (const ParamSpec& spec : f.trainer->parameters()) {
    if (spec.expert < 0) continue;
    const auto g = f.trainer->gradient(spec.name);
    const bool zero = std::all_of(g.begin(), g.end(), [](float x) { return x == 0.0F; });
    CAPTURE(spec.name);
    CHECK(zero == (spec.expert > 1));
  }
}

// What the sample's tokens are routed to by score, as a rollout records it.
std::vector<int32_t> live_routing(Fixture& f, const TrainSample& sample) {
  auto weights = model::bind_weights(f.config, f.manifest, f.arena->data());
  REQUIRE(weights.ok());
  const auto model = *model::Model::create(f.config, *std::move(weights), Dtype::kBF16, f.pool);
  PackedBatch packed;
  const Sequence sequence{sample.tokens, sample.prompt_length};
  packed.build({&sequence, 1});
  Buffer x_bytes, k, v;
  const int64_t rows = packed.num_rows(), width = f.config.num_kv_heads * f.config.head_dim;
  const MatrixView x = x_bytes.matrix(Dtype::kBF16, rows, f.config.hidden_size);
  const model::KvLayer kv{k.matrix(Dtype::kBF16, rows, width), v.matrix(Dtype::kBF16, rows, width)};
  model->embed(packed.batch(), x);
  const size_t top_k = static_cast<size_t>(f.config.num_experts_per_token);
  const size_t per_token = static_cast<size_t>(routing_width(f.config));
  std::vector<int32_t> ids(static_cast<size_t>(rows) * per_token), layer_ids;
  for (size_t layer = 0; layer < static_cast<size_t>(f.config.num_layers); ++layer) {
    REQUIRE(f.config.layer_is_moe[layer]);
    REQUIRE(model
                ->layer_forward(static_cast<int64_t>(layer), packed.batch(), kv, x,
                                {.record = &layer_ids, .replay = {}}, nullptr)
                .ok());
    for (size_t t = 0; t < static_cast<size_t>(rows); ++t) {
      std::copy_n(layer_ids.data() + t * top_k, top_k, ids.data() + t * per_token + layer * top_k);
    }
  }
  return ids;
}

TEST_CASE("replaying the routing of equal policies changes no bit, and other routing is seen and followed") {
  TrainerOptions options = reference_options();
  options.compute_dtype = Dtype::kBF16;
  const auto run = [&](bool replay, const std::vector<TrainSample>& samples, int64_t activation_bytes) {
    options.algorithm.routing_replay = replay;
    options.activation_bytes = activation_bytes;
    Fixture f("qwen3_moe", options, mxfp8_everywhere());
    StepReport report = step_of(f, samples);
    return std::pair(std::move(report), all_masters(*f.trainer));
  };
  auto samples = recorded_samples("qwen3_moe", 2);
  const auto [plain, plain_masters] = run(false, samples, 1 << 30);
  CHECK(plain.metrics.count("mismatch/expert_overlap") == 0);
  Fixture f("qwen3_moe", options, mxfp8_everywhere());
  std::vector<std::vector<int32_t>> ids;
  for (TrainSample& s : samples) {
    ids.push_back(live_routing(f, s));
    s.routing = pack_expert_ids(ids.back(), f.config.num_experts);
    REQUIRE(check_recorded_routing(s, f.config).ok());
  }
  // Kept tapes and recomputed layers both replay.
  for (int64_t bytes : {int64_t{1} << 30, int64_t{0}}) {
    const auto [report, masters] = run(true, samples, bytes);
    CHECK(report.metrics.at("mismatch/expert_overlap") == 1.0);
    CHECK(report.logprobs == plain.logprobs);
    CHECK(masters == plain_masters);
  }

  // The negative control: one choice of one token in one layer is another expert.
  const auto k = ids[1].begin() + 5 * routing_width(f.config);
  const auto top_k = static_cast<std::ptrdiff_t>(f.config.num_experts_per_token);
  int32_t other = 0;
  while (std::find(k, k + top_k, other) != k + top_k) ++other;
  *k = other;
  samples[1].routing = pack_expert_ids(ids[1], f.config.num_experts);
  size_t choices = 0;
  for (const auto& sample : ids) choices += sample.size();
  const auto [followed, followed_masters] = run(true, samples, 1 << 30);
  // Later layers of that token, and later tokens, may be routed to others by score.
  CHECK(followed.metrics.at("mismatch/expert_overlap") <= 1.0 - 1.0 / static_cast<double>(choices) + 1e-12);
  CHECK(followed.metrics.at("mismatch/expert_overlap") > 0.5);
  CHECK(followed.logprobs[0] == plain.logprobs[0]);
  CHECK(followed.logprobs[1] != plain.logprobs[1]);
  CHECK(followed_masters != plain_masters);
  const auto [recomputed, recomputed_masters] = run(true, samples, 0);
  CHECK(recomputed.logprobs == followed.logprobs);
  CHECK(recomputed_masters == followed_masters);
  // Without replay the difference is only measured.
  const auto [seen, seen_masters] = run(false, samples, 1 << 30);
  CHECK(std::abs(seen.metrics.at("mismatch/expert_overlap") - (1.0 - 1.0 / static_cast<double>(choices))) <
        1e-12);
  CHECK(seen.logprobs == plain.logprobs);
  CHECK(seen_masters == plain_masters);
}

TEST_CASE("routing that does not fit is refused") {
  Fixture f("qwen3_moe", reference_options());
  const auto samples = recorded_samples("qwen3_moe", 2);
  const std::vector<int32_t> ids = live_routing(f, samples[0]);
  const auto refused = [&](std::vector<int32_t> changed, const std::string& word) {
    auto bad = samples;
    for (TrainSample& s : bad) s.routing = pack_expert_ids(live_routing(f, s), f.config.num_experts);
    bad[0].routing = pack_expert_ids(changed, f.config.num_experts);
    const auto report = f.trainer->train_step(bad, 1);
    REQUIRE(!report.ok());
    const std::string message(message_of(report.status()));
    CAPTURE(message, word);
    CHECK(message.find("sample 0 of prompt 0") != std::string::npos);
    CHECK(message.find(word) != std::string::npos);
  };
  auto changed = ids;
  changed.pop_back();
  refused(changed, "bytes, must have");
  changed = ids;
  changed[7] = static_cast<int32_t>(f.config.num_experts);
  refused(changed, "names expert 8");
  changed = ids;
  changed[1] = changed[0];
  refused(changed, "twice in one layer at token 0");
  CHECK(!check_recorded_routing(samples[0], f.config).ok());  // none, where it must be there
}

}  // namespace accord::trainer
