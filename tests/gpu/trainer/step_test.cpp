// The trainer on a device against the CPU's: same bytes, same samples. Sums have other orders there, so
// values are close; everything that is exact by construction is compared exactly.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "checkpoint/hf_checkpoint.hpp"
#include "kernels/adamw/adamw_element.hpp"
#include "support/catch.hpp"
#include "support/group.hpp"
#include "trainer/case.hpp"
#include "trainer/optimizer.hpp"

using namespace accord;
using gpu_test::different;
using gpu_test::Gpu;
using gpu_test::must;
using gpu_test::Tensors;
using gpu_test::TrainedStep;
using gpu_test::trainer_options;
using gpu_test::TrainerCase;
using gpu_test::training_samples;
using recipe::BackwardMode;
using trainer::StateTensor;
using trainer::TrainerOptions;
using trainer::TrainSample;

namespace {

const char* const kModels[] = {"qwen3_moe", "qwen3_dense_tied", "llama_tied", "deepseek_v3_mla",
                               "deepseek_v3_mla absorbed"};

struct Mode {
  WeightFormat format;
  BackwardMode backward;
  const char* name;
  // Of log-probs (absolute) and of gradients (relative Frobenius norm of all of them, and of the worst
  // tensor), where both sides sum in one order.
  double logprob, gradients, gradient;
};
// A bf16 result that rounds the other way on one side moves whole quantization blocks.
const Mode kModes[] = {
    {WeightFormat::kBF16, BackwardMode::kHighPrecision, "BF16", 0.05, 0.02, 0.1},
    {WeightFormat::kMXFP8, BackwardMode::kHighPrecision, "MXFP8 high_precision", 0.1, 0.1, 0.3},
    {WeightFormat::kMXFP8, BackwardMode::kDequantized, "MXFP8 dequantized", 0.1, 0.1, 0.3},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized, "MXFP8 quantized", 0.1, 0.2, 0.4},
    {WeightFormat::kNVFP4, BackwardMode::kHighPrecision, "NVFP4 high_precision", 0.2, 0.2, 0.6},
    {WeightFormat::kNVFP4, BackwardMode::kDequantized, "NVFP4 dequantized", 0.2, 0.2, 0.6},
};

DeviceId cpu() { return {}; }

// These small checkpoints have large weights: one rounding more or less in bf16 moves log-probs by tenths.
// Where the device sums in another order than the CPU, both are therefore measured from the CPU's float32
// step over the same bytes, and the device may be at most this many times as far from it.
constexpr double kFarther = 2.0;

struct Distance {
  double error = 0.0;
  double norm = 0.0;
  double relative() const { return norm == 0.0 ? std::sqrt(error) : std::sqrt(error / norm); }
};

Distance distance(const std::vector<float>& a, const std::vector<float>& b) {
  Distance d;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    d.error += difference * difference;
    d.norm += static_cast<double>(b[i]) * b[i];
  }
  return d;
}

struct Distances {
  double all = 0.0;
  double worst = 0.0;
  std::string name;  // of the worst
};

Distances distances(const Tensors& a, const Tensors& b) {
  Distances out;
  Distance sum;
  for (const auto& [name, values] : b) {
    const Distance d = distance(a.at(name), values);
    sum.error += d.error;
    sum.norm += d.norm;
    if (d.relative() <= out.worst) continue;
    out.worst = d.relative();
    out.name = name;
  }
  out.all = sum.relative();
  return out;
}

int64_t different_values(const Tensors& a, const Tensors& b) {
  int64_t count = 0;
  for (const auto& [name, values] : b) count += different(a.at(name), values);
  return count;
}

double largest_difference(const trainer::StepReport& a, const trainer::StepReport& b) {
  double largest = 0.0;
  for (size_t s = 0; s < b.logprobs.size(); ++s) {
    for (size_t i = 0; i < b.logprobs[s].size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a.logprobs[s][i]) - b.logprobs[s][i]));
    }
  }
  return largest;
}

// What AdamW makes of the masters and the clipped gradients of a first step.
int64_t wrong_masters(TrainerCase& run, const TrainerOptions& options, const Tensors& before,
                      const TrainedStep& step) {
  int64_t wrong = 0;
  for (const ParamSpec& spec : run.trainer().parameters()) {
    const kernels::AdamwFactors factors =
        trainer::adamw_factors(options.optimizer, options.optimizer.lr, 1, run.decays(spec));
    std::vector<float> masters = before.at(spec.name);
    const std::vector<float>& gradient = step.gradients.at(spec.name);
    for (size_t i = 0; i < masters.size(); ++i) {
      float exp_avg = 0.0F, exp_avg_sq = 0.0F;
      kernels::adamw_element(masters[i], gradient[i], exp_avg, exp_avg_sq, factors);
    }
    wrong += different(step.masters.at(spec.name), masters);
  }
  return wrong;
}

struct Nearness {
  double logprob, gradients, gradient;
  std::optional<TrainedStep> exact;  // what is measured from; none: the CPU's bf16 step
};

Nearness allowed(const Gpu& gpu, const char* model, const Mode& mode, TrainerOptions options,
                 const std::vector<TrainSample>& samples, const TrainedStep& on_cpu) {
  Nearness out{mode.logprob, mode.gradients, mode.gradient, std::nullopt};
  if (gpu.emulated()) return out;
  options.compute_dtype = Dtype::kF32;
  TrainerCase exact(gpu, cpu(), model, mode.format, options);
  out.exact = exact.step(samples);
  const Distances gradients = distances(on_cpu.gradients, out.exact->gradients);
  out.logprob += kFarther * largest_difference(on_cpu.report, out.exact->report);
  out.gradients += kFarther * gradients.all;
  out.gradient += kFarther * gradients.worst;
  return out;
}

}  // namespace

TEST_CASE("a step on the device is near the CPU's in every mode") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const char* model : kModels) {
    for (const Mode& mode : kModes) {
      CAPTURE(model, mode.name);
      TrainerOptions options = trainer_options(mode.backward);
      options.optimizer.clip_grad = 0.0;
      TrainerCase reference(*gpu, cpu(), model, mode.format, options);
      TrainerCase run(*gpu, gpu->device().id(), model, mode.format, options);
      CHECK(run.trainer().device() == gpu->device().id());
      const auto samples = training_samples(reference.trainer(), run.config().vocab_size);
      const Tensors before = run.masters();
      const TrainedStep expected = reference.step(samples);
      const TrainedStep got = run.step(samples);
      const Nearness bounds = allowed(*gpu, model, mode, options, samples, expected);
      const TrainedStep& from = bounds.exact ? *bounds.exact : expected;
      const double logprobs = largest_difference(got.report, from.report);
      const Distances gradients = distances(got.gradients, from.gradients);
      CAPTURE(logprobs, gradients.all, gradients.worst, gradients.name);
      std::printf("%-24s %-21s log-probs %.1e, gradients %.1e, worst %.1e (%s)\n", model, mode.name, logprobs,
                  gradients.all, gradients.worst, gradients.name.c_str());
      CHECK(logprobs <= bounds.logprob);
      CHECK(gradients.all <= bounds.gradients);
      CHECK(gradients.worst <= bounds.gradient);
      CHECK(wrong_masters(run, options, before, got) == 0);
      CHECK(different_values(before, got.masters) > 0);

      const trainer::TrainerMemory memory = run.trainer().memory();
      const auto bytes = static_cast<int64_t>(sizeof(float));
      int64_t elements = 0;
      for (const ParamSpec& spec : run.trainer().parameters()) elements += spec.numel();
      CHECK(memory.masters >= elements * bytes);
      CHECK(memory.moments == 2 * memory.masters);
      CHECK(memory.gradients == memory.masters);
      CHECK(memory.activations > 0);
      CHECK(memory.workspace > 0);
    }
  }
}

TEST_CASE("gradients on the device are clipped by their norm") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  const double clip = options.optimizer.clip_grad;
  TrainerCase clipped(*gpu, gpu->device().id(), "qwen3_moe", WeightFormat::kMXFP8, options);
  const auto samples = training_samples(clipped.trainer(), clipped.config().vocab_size);
  const Tensors before = clipped.masters();
  const TrainedStep got = clipped.step(samples);
  options.optimizer.clip_grad = 0.0;
  TrainerCase whole(*gpu, gpu->device().id(), "qwen3_moe", WeightFormat::kMXFP8, options);
  Tensors expected = whole.step(samples).gradients;
  const double norm = got.report.metrics.at("train/grad_norm");
  REQUIRE(norm > clip);
  const float scale = trainer::clip_scale(norm, clip);
  double squares = 0.0;
  for (auto& [name, values] : expected) {
    for (float& value : values) {
      squares += static_cast<double>(value) * value;
      value *= scale;
    }
  }
  CHECK(std::abs(std::sqrt(squares) - norm) <= 1e-12 * norm);
  CHECK(different_values(got.gradients, expected) == 0);
  CHECK(wrong_masters(clipped, options, before, got) == 0);
}

TEST_CASE("steps on the device repeat bit for bit, also where layers are recomputed") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const char* model : kModels) {
    for (const Mode& mode : kModes) {
      CAPTURE(model, mode.name);
      TrainerOptions options = trainer_options(mode.backward);
      TrainerCase source(*gpu, gpu->device().id(), model, mode.format, options);
      const auto samples = training_samples(source.trainer(), source.config().vocab_size);
      const TrainedStep expected = source.step(samples);
      for (const int64_t activation_bytes : {int64_t{1} << 30, int64_t{400000}, int64_t{0}}) {
        CAPTURE(activation_bytes);
        options.activation_bytes = activation_bytes;
        TrainerCase run(*gpu, gpu->device().id(), model, mode.format, options);
        CHECK(must(run.trainer().logprobs(samples)) == expected.report.logprobs);
        const TrainedStep got = run.step(samples);
        CHECK(got.report.logprobs == expected.report.logprobs);
        CHECK(got.report.metrics == expected.report.metrics);
        CHECK(different_values(got.gradients, expected.gradients) == 0);
        CHECK(different_values(got.masters, expected.masters) == 0);
      }
    }
  }
}

TEST_CASE("log-probs do not depend on micro-batches, gradients only by the order of sums") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const char* model : kModels) {
    for (const Mode& mode : kModes) {
      CAPTURE(model, mode.name);
      TrainerOptions options = trainer_options(mode.backward);
      TrainerCase whole(*gpu, gpu->device().id(), model, mode.format, options);
      const auto samples = training_samples(whole.trainer(), whole.config().vocab_size);
      const TrainedStep expected = whole.step(samples);
      options.tokens_per_microbatch = 100;
      TrainerCase parts(*gpu, gpu->device().id(), model, mode.format, options);
      const TrainedStep got = parts.step(samples);
      CHECK(got.report.metrics.at("train/microbatches") > 2.0);
      CHECK(got.report.logprobs == expected.report.logprobs);
      const Distances gradients = distances(got.gradients, expected.gradients);
      CAPTURE(gradients.all, gradients.worst, gradients.name);
      // Columns are quantized in blocks of a micro-batch's rows.
      CHECK(gradients.worst <= (mode.backward == BackwardMode::kQuantized ? 0.3 : 1e-4));
    }
  }
}

TEST_CASE("state that was read from the device continues a run bit for bit") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  TrainerCase a(*gpu, gpu->device().id(), "qwen3_moe", WeightFormat::kMXFP8, options);
  const auto samples = training_samples(a.trainer(), a.config().vocab_size);
  a.step(samples);
  a.export_weights();
  TrainerCase b(*gpu, gpu->device().id(), "qwen3_moe", WeightFormat::kMXFP8, options);
  const std::vector<StateTensor> from = a.trainer().state();
  const std::vector<StateTensor> to = b.trainer().state();
  REQUIRE(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    std::vector<float> values(static_cast<size_t>(from[i].numel));
    must(from[i].read(values));
    must(to[i].write(values));
  }
  b.trainer().set_optimizer_steps(a.trainer().optimizer_steps());
  b.export_weights();
  const TrainedStep expected = a.step(samples, 2);
  const TrainedStep got = b.step(samples, 2);
  CHECK(different_values(got.masters, expected.masters) == 0);
  CHECK(got.report.logprobs == expected.report.logprobs);
}

TEST_CASE("recorded routing is followed on the device and compared with the scores") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  for (const bool replay : {true, false}) {
    CAPTURE(replay);
    options.algorithm.routing_replay = replay;
    TrainerCase reference(*gpu, cpu(), "qwen3_moe", WeightFormat::kMXFP8, options);
    TrainerCase run(*gpu, gpu->device().id(), "qwen3_moe", WeightFormat::kMXFP8, options);
    auto samples = training_samples(reference.trainer(), run.config().vocab_size);
    const auto width = static_cast<size_t>(routing_width(run.config()));
    for (TrainSample& sample : samples) {
      std::vector<int32_t> ids;
      for (size_t i = 0; i < (sample.tokens.size() - 1) * width; ++i)
        ids.push_back(static_cast<int32_t>(i % 2));
      sample.routing = pack_expert_ids(ids, run.config().num_experts);
    }
    const TrainedStep expected = reference.step(samples);
    const TrainedStep got = run.step(samples);
    const char* const overlap = "mismatch/expert_overlap";
    const double near = got.report.metrics.at(overlap) - expected.report.metrics.at(overlap);
    CAPTURE(got.report.metrics.at(overlap));
    CHECK(std::abs(near) < 0.02);
    const Mode mode{WeightFormat::kMXFP8, BackwardMode::kHighPrecision, "", 0.1, 0.05, 0.3};
    const Nearness bounds = allowed(*gpu, "qwen3_moe", mode, options, samples, expected);
    const TrainedStep& from = bounds.exact ? *bounds.exact : expected;
    CHECK(distances(got.gradients, from.gradients).all <= bounds.gradients);
    for (const ParamSpec& spec : run.trainer().parameters()) {
      if (spec.expert < 2) continue;
      const std::vector<float>& gradient = got.gradients.at(spec.name);
      const bool unused = std::all_of(gradient.begin(), gradient.end(), [](float g) { return g == 0.0F; });
      if (replay) CHECK(unused);
    }
  }
}

TEST_CASE("a gradient on the device that is not finite changes nothing") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  TrainerCase run(*gpu, gpu->device().id(), "qwen3_dense_tied", WeightFormat::kBF16, options);
  auto samples = training_samples(run.trainer(), run.config().vocab_size);
  const Tensors before = run.masters();
  samples[1].advantage = std::numeric_limits<double>::infinity();
  const auto infinite = run.trainer().train_step(samples, 4);
  REQUIRE(!infinite.ok());
  CHECK(message_of(infinite.status()).find("step 4") != std::string::npos);
  samples[1].advantage = 1e300;  // the loss is finite, its gradient is not
  const auto overflow = run.trainer().train_step(samples, 5);
  REQUIRE(!overflow.ok());
  CHECK(message_of(overflow.status()).find("is not finite") != std::string::npos);
  CHECK(different_values(run.masters(), before) == 0);
  CHECK(run.trainer().optimizer_steps() == 0);
}

TEST_CASE("two ranks on the device take one rank's step") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const Mode& mode : kModes) {
    CAPTURE(mode.name);
    TrainerOptions options = trainer_options(mode.backward);
    options.tokens_per_microbatch = 1;  // every sample alone, so that its terms have the same bits
    TrainerCase alone(*gpu, gpu->device().id(), "qwen3_moe", mode.format, options);
    const auto samples = training_samples(alone.trainer(), alone.config().vocab_size);
    const TrainedStep expected = alone.step(samples);
    std::vector<std::unique_ptr<TrainerCase>> pool;
    std::vector<TrainerCase*> ranks;
    options.size = 2;
    for (options.rank = 0; options.rank < options.size; ++options.rank) {
      pool.push_back(
          std::make_unique<TrainerCase>(*gpu, gpu->device().id(), "qwen3_moe", mode.format, options));
      ranks.push_back(pool.back().get());
    }
    for (TrainerCase* rank : ranks) rank->export_weights(ranks);
    std::vector<trainer::StepReport> reports(ranks.size());
    trainer::BatchTotals totals{0, static_cast<int64_t>(samples.size())};
    for (const TrainSample& s : samples) totals.num_tokens += s.response_length();
    accord::testing::require_all_ok(
        accord::testing::run_group(options.size, "trainers", [&](Communicator& group) -> Status {
          const auto rank = static_cast<size_t>(group.rank());
          trainer::Trainer& mine = ranks[rank]->trainer();
          ACCORD_RETURN_IF_ERROR(mine.connect(group));
          ACCORD_RETURN_IF_ERROR(mine.share_originals(accord::testing::soon()));
          std::vector<TrainSample> shard;
          std::vector<int64_t> places;
          for (size_t s = rank; s < samples.size(); s += ranks.size()) {
            shard.push_back(samples[s]);
            places.push_back(static_cast<int64_t>(s));
          }
          ACCORD_ASSIGN_OR_RETURN(reports[rank],
                                  mine.train_step(shard, 1, totals, places, accord::testing::soon()));
          return absl::OkStatus();
        }));
    Tensors gradients, masters;
    for (size_t r = 0; r < ranks.size(); ++r) {
      gradients.merge(ranks[r]->gradients());
      masters.merge(ranks[r]->masters());
      for (size_t i = 0; i < reports[r].logprobs.size(); ++i) {
        CHECK(reports[r].logprobs[i] == expected.report.logprobs[2 * i + r]);
      }
    }
    CHECK(gradients.size() == expected.gradients.size());
    CHECK(distances(gradients, expected.gradients).worst < 1e-5);
    CHECK(distances(masters, expected.masters).all < 1e-4);
  }
}

TEST_CASE("the trainer refuses what does not run on a device") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(1);
  const auto refused = [&](const char* text, const ModelConfig& config, TrainerOptions options) {
    CAPTURE(text);
    options.device = gpu->device().id();
    const auto trainer = trainer::Trainer::create(
        config, options, pool, [](const ParamSpec&, std::span<float>) { return absl::OkStatus(); });
    REQUIRE(!trainer.ok());
    INFO(std::string(message_of(trainer.status())));
    CHECK(message_of(trainer.status()).find(text) != std::string::npos);
    CHECK(exit_code(trainer.status()) == ExitCode::kBadRecipe);
  };
  const auto config_of = [](const std::string& model) {
    return must(checkpoint::HfCheckpoint::open(gpu_test::test_data() + "/hf/" + model)).config();
  };
  TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  ModelConfig config = config_of("qwen3_moe");
  options.compute_dtype = Dtype::kF32;
  refused("compute_dtype", config, options);
  options.compute_dtype = Dtype::kBF16;
  options.expert_parallel = 2;
  options.size = 2;
  refused("trainer.expert_parallel is 2", config, options);
  options = trainer_options(BackwardMode::kHighPrecision);
  config.moe_intermediate_size = 36;
  refused("mlp.experts.0.gate_proj.weight [36, 64]", config, options);
}
