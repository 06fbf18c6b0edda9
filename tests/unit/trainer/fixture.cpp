#include "unit/trainer/fixture.hpp"

#include "support/catch.hpp"
#include "trainer/objective.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace accord::trainer {

namespace {

void require_ok(const Status& status) {
  INFO(std::string(message_of(status)));
  REQUIRE(status.ok());
}

}  // namespace

ModelConfig moe_config() {
  return value_of(checkpoint::HfCheckpoint::open(std::string(ACCORD_TEST_DATA) + "/hf/qwen3_moe")).config();
}

Fixture::Fixture(const std::string& model, const TrainerOptions& options,
                 const recipe::PrecisionPart& precision, int threads)
    : dir(std::string(ACCORD_TEST_DATA) + "/hf/" + model), pool(threads) {
  const auto checkpoint = value_of(checkpoint::HfCheckpoint::open(dir));
  config = checkpoint.config();
  plan = value_of(precision::build_plan(config, precision));
  manifest = value_of(weights::build_manifest(config, plan));
  arena = value_of(weights::Arena::create(manifest.arena_bytes));
  TrainerOptions with_plan = options;
  for (const precision::PlanRow& row : plan.rows) {
    if (!row.weight_decay) with_plan.no_weight_decay.push_back(row.name);
    with_plan.units.push_back(row.unit);
  }
  trainer =
      value_of(Trainer::create(config, with_plan, pool, [&](const ParamSpec& spec, std::span<float> values) {
        return checkpoint.read_f32(spec.name, values);
      }));
  if (options.size == 1) export_weights();
  require_ok(trainer->bind_arena(manifest, arena->data()));
}

void Fixture::export_weights() {
  export_weights([this](const std::string& name) { return trainer->master(name); });
}

void Fixture::export_weights(const std::function<std::span<const float>(const std::string&)>& master) {
  const auto masters = [&](const std::string& name) -> StatusOr<weights::Master> {
    return weights::Master(master(name));
  };
  require_ok(weights::export_weights(manifest, plan, masters, *arena, pool).status());
}

std::vector<float> values_of(const StateTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel));
  require_ok(tensor.read(values));
  return values;
}

recipe::PrecisionPart mxfp8_everywhere() {
  recipe::PrecisionPart part;
  recipe::PrecisionConfig config;
  config.name = "mxfp8";
  config.format = WeightFormat::kMXFP8;
  part.configs.push_back(config);
  recipe::PrecisionMatcher matcher;
  matcher.name = "all";
  matcher.pattern = "*";
  matcher.config = "mxfp8";
  part.matchers.push_back(matcher);
  return part;
}

std::vector<float> read_tensor(const checkpoint::SafetensorsFile& file, const std::string& name) {
  const auto* info = value_of(file.require(name));
  std::vector<float> out(static_cast<size_t>(info->numel()));
  require_ok(file.read_f32(name, out));
  return out;
}

std::vector<TrainSample> recorded_samples(const std::string& model, int64_t group_size) {
  const auto file = value_of(checkpoint::SafetensorsFile::open(std::string(ACCORD_TEST_DATA) + "/hf/" +
                                                               model + "/golden.safetensors"));
  const auto* ids = value_of(file.require("step.input_ids"));
  const size_t batch = static_cast<size_t>(ids->shape[0]), length = static_cast<size_t>(ids->shape[1]);
  std::vector<int32_t> tokens(batch * length), prompt(batch), total(batch);
  require_ok(file.read_i32("step.input_ids", tokens));
  require_ok(file.read_i32("step.prompt_len", prompt));
  require_ok(file.read_i32("step.total_len", total));
  const std::vector<float> old = read_tensor(file, "step.old_logprobs"),
                           rewards = read_tensor(file, "step.rewards");
  std::vector<double> advantages(batch);
  group_advantages(recipe::AdvantageKind::kStd, std::vector<double>(rewards.begin(), rewards.end()),
                   group_size, advantages);
  std::vector<TrainSample> samples(batch);
  for (size_t b = 0; b < batch; ++b) {
    TrainSample& s = samples[b];
    s.key.sample_index = static_cast<uint32_t>(b);
    const auto row = tokens.begin() + static_cast<int64_t>(b * length);
    s.tokens.assign(row, row + total[b]);
    s.prompt_length = prompt[b];
    const auto old_row = old.begin() + static_cast<int64_t>(b * (length - 1));
    s.rollout_logprobs.assign(old_row + prompt[b] - 1, old_row + total[b] - 1);
    s.advantage = advantages[b];
  }
  return samples;
}

}  // namespace accord::trainer
