#include "trainer/case.hpp"

#include <algorithm>

#include "base/philox.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace gpu_test {

using namespace accord;
using trainer::Trainer;
using trainer::TrainerOptions;
using trainer::TrainSample;

TrainerCase::TrainerCase(const Gpu& gpu, DeviceId device, const std::string& model, WeightFormat format,
                         const TrainerOptions& options)
    : TrainerCase(
          gpu, device, model,
          [&](const ModelConfig& config) {
            // Its rows do not divide by the blocks of column-wise copies.
            const bool quantized = options.backward == recipe::BackwardMode::kQuantized;
            return uniform_plan(
                config, format,
                quantized ? std::vector<std::string>{"kv_a_proj_with_mqa"} : std::vector<std::string>{});
          },
          options) {}

TrainerCase::TrainerCase(const Gpu& gpu, DeviceId device, const std::string& model, const MakePlan& plan,
                         const TrainerOptions& options)
    : gpu_(gpu), pool_(2) {
  const std::string folder = model.substr(0, model.find(' '));
  const auto source = must(checkpoint::HfCheckpoint::open(test_data() + "/hf/" + folder));
  config_ = source.config();
  if (config_.has_mla()) config_.mla.form = folder == model ? MlaForm::kPlain : MlaForm::kAbsorbed;
  plan_ = plan(config_);
  manifest_ = must(weights::build_manifest(config_, plan_));
  host_ = must(weights::Arena::create(manifest_.arena_bytes));
  TrainerOptions with_plan = options;
  with_plan.device = device;
  for (const precision::PlanRow& row : plan_.rows) {
    if (!row.weight_decay) with_plan.no_weight_decay.push_back(row.name);
    with_plan.units.push_back(row.unit);
  }
  trainer_ =
      must(Trainer::create(config_, with_plan, pool_, [&](const ParamSpec& spec, std::span<float> values) {
        return source.read_f32(spec.name, values);
      }));
  if (device.is_cuda()) arena_ = gpu.allocate(static_cast<size_t>(manifest_.arena_bytes));
  if (options.size == 1) export_weights();
  must(trainer_->bind_arena(manifest_, device.is_cuda() ? arena_.data() : host_->data()));
}

bool TrainerCase::decays(const ParamSpec& spec) const {
  const auto row = std::find_if(plan_.rows.begin(), plan_.rows.end(),
                                [&](const precision::PlanRow& r) { return r.name == spec.name; });
  return spec.shape.size() > 1 && row->weight_decay;
}

void TrainerCase::export_weights() { export_weights({this}); }

void TrainerCase::export_weights(const std::vector<TrainerCase*>& ranks) {
  std::map<std::string, int64_t> sizes;
  for (const ParamSpec& spec : trainer_->parameters()) sizes[spec.name] = spec.numel();
  const weights::Masters masters = [&](const std::string& name) -> StatusOr<weights::Master> {
    std::vector<float> values(static_cast<size_t>(sizes.at(name)));
    const TrainerCase& owner = *ranks[static_cast<size_t>(trainer_->owner(name))];
    ACCORD_RETURN_IF_ERROR(owner.trainer_->read_master(name, values));
    return weights::Master(std::move(values));
  };
  must(weights::export_weights(manifest_, plan_, masters, *host_, pool_).status());
  if (trainer_->stream() == nullptr) return;
  must(trainer_->stream()->copy(arena_.data(), host_->data(), static_cast<size_t>(host_->size())));
  must(trainer_->stream()->synchronize());
}

TrainedStep TrainerCase::step(const std::vector<TrainSample>& samples, uint64_t step) {
  TrainedStep out;
  out.report = must(trainer_->train_step(samples, step));
  out.gradients = gradients();
  out.masters = masters();
  return out;
}

Tensors TrainerCase::masters() const {
  Tensors out;
  for (const ParamSpec& spec : trainer_->parameters()) {
    if (!trainer_->owns(spec.name)) continue;
    std::vector<float>& values = out[spec.name];
    values.resize(static_cast<size_t>(spec.numel()));
    must(trainer_->read_master(spec.name, values));
  }
  return out;
}

Tensors TrainerCase::gradients() const {
  Tensors out;
  for (const ParamSpec& spec : trainer_->parameters()) {
    if (!trainer_->owns(spec.name)) continue;
    std::vector<float>& values = out[spec.name];
    values.resize(static_cast<size_t>(spec.numel()));
    must(trainer_->read_gradient(spec.name, values));
  }
  return out;
}

TrainerOptions trainer_options(recipe::BackwardMode mode) {
  TrainerOptions options;
  options.backward = mode;
  options.compute_dtype = Dtype::kBF16;
  options.optimizer.lr = 1e-3;
  options.optimizer.weight_decay = 0.1;
  options.optimizer.clip_grad = 0.05;
  options.algorithm.entropy_coefficient = 0.01;
  options.tokens_per_microbatch = 1 << 20;
  return options;
}

std::vector<TrainSample> training_samples(Trainer& trainer, int64_t vocab) {
  PhiloxStream random(71, 5);
  const auto below = [&](int64_t n) {
    return static_cast<int32_t>(random.next_double() * static_cast<double>(n));
  };
  std::vector<TrainSample> samples;
  for (const int32_t length : {2, 40, 131, 9, 65, 66, 18}) {
    TrainSample sample;
    sample.key.sample_index = static_cast<uint32_t>(samples.size());
    for (int32_t i = 0; i < length; ++i) sample.tokens.push_back(below(vocab));
    sample.prompt_length = 1 + below(length - 1);
    sample.advantage = random.next_normal();
    sample.temperature = samples.size() % 2 == 0 ? 1.0F : 0.7F;
    samples.push_back(std::move(sample));
  }
  const std::vector<std::vector<float>> logprobs = must(trainer.logprobs(samples));
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].rollout_logprobs = logprobs[i];
    // Ratios stay inside of the clip range, at whose ends the loss has kinks.
    for (float& value : samples[i].rollout_logprobs) {
      value += static_cast<float>(0.05 * (random.next_double() - 0.5));
    }
  }
  return samples;
}

}  // namespace gpu_test
