#include "trainer/trainer.hpp"

#include <algorithm>
#include <utility>

#include "trainer/exchange.hpp"
#include "trainer/linear_backward.hpp"
#include "trainer/trainer_impl.hpp"

namespace accord::trainer {

namespace {

Status validate_options(const TrainerOptions& options) {
  if (options.tokens_per_microbatch < 1) {
    return recipe_error("trainer.tokens_per_microbatch is {}, must be at least 1",
                        options.tokens_per_microbatch);
  }
  if (options.compute_dtype != Dtype::kF32 && options.compute_dtype != Dtype::kBF16) {
    return recipe_error("model.compute_dtype must be float32 or bfloat16");
  }
  return absl::OkStatus();
}

Status validate_schedule(const recipe::OptimizerPart& optimizer, int64_t total_steps) {
  if (optimizer.schedule != recipe::Schedule::kConstant && total_steps <= 0) {
    return recipe_error("optimizer.schedule: linear and cosine need the number of steps of the run");
  }
  return absl::OkStatus();
}

Status check_size(std::string_view name, size_t have, size_t want) {
  if (have == want) return absl::OkStatus();
  return internal_error("trainer: {} has {} values, {} were given", name, want, have);
}

// One tensor of the state in host memory.
StateTensor host_tensor(std::string name, const ParamSpec& spec, std::span<float> values) {
  StateTensor out{std::move(name), spec.shape, spec.numel(), nullptr, nullptr};
  out.read = [name = out.name, values](std::span<float> to) -> Status {
    ACCORD_RETURN_IF_ERROR(check_size(name, to.size(), values.size()));
    std::copy(values.begin(), values.end(), to.begin());
    return absl::OkStatus();
  };
  out.write = [name = out.name, values](std::span<const float> from) -> Status {
    ACCORD_RETURN_IF_ERROR(check_size(name, from.size(), values.size()));
    std::copy(from.begin(), from.end(), values.begin());
    return absl::OkStatus();
  };
  return out;
}

StatusOr<BackwardOptions> backward_options(const TrainerOptions& options, const Parameters& parameters) {
  BackwardOptions out{options.backward, std::vector<bool>(static_cast<size_t>(parameters.count()))};
  for (const std::string& name : options.e5m2_gradients) {
    const int64_t index = parameters.index(name);
    if (index < 0) return internal_error("e5m2_gradients: no parameter '{}'", name);
    out.e5m2_gradients[static_cast<size_t>(index)] = true;
  }
  return out;
}

}  // namespace

Trainer::Impl::Impl(const ModelConfig& c, const TrainerOptions& o, ThreadPool& p, Parameters params,
                    BackwardOptions backward)
    : config(c),
      options(o),
      pool(p),
      parameters(std::move(params)),
      group(o.rank, o.size),
      workspace(config, parameters, pool, options.compute_dtype, std::move(backward)) {}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

StatusOr<std::unique_ptr<Trainer>> Trainer::create(const ModelConfig& config, const TrainerOptions& options,
                                                   ThreadPool& pool, const LoadMaster& load_master) {
  ACCORD_RETURN_IF_ERROR(validate(config));
  ACCORD_RETURN_IF_ERROR(validate_options(options));
  ACCORD_RETURN_IF_ERROR(validate_schedule(options.optimizer, options.total_steps));
  if (options.device.is_cuda()) return unavailable_error("the trainer does not run on CUDA in this build");
  ACCORD_ASSIGN_OR_RETURN(Shards shards, Shards::create(config, {options.rank, options.size,
                                                                 options.expert_parallel, options.units}));
  ACCORD_ASSIGN_OR_RETURN(Parameters parameters,
                          Parameters::create(config, options.no_weight_decay, std::move(shards)));
  ACCORD_ASSIGN_OR_RETURN(BackwardOptions backward, backward_options(options, parameters));
  auto impl = std::make_unique<Impl>(config, options, pool, std::move(parameters), std::move(backward));
  for (int64_t i = 0; i < impl->parameters.count(); ++i) {
    if (!impl->parameters.shards().owns(i)) continue;
    const ParamSpec& spec = impl->parameters.specs()[static_cast<size_t>(i)];
    const Status status = load_master(spec, impl->parameters.master(i));
    if (!status.ok()) return annotate(status, spec.name);
  }
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Status Trainer::connect(Communicator& group) { return impl_->group.connect(group); }

Status Trainer::connect_experts(Communicator& group) {
  const Shards& shards = impl_->parameters.shards();
  const int32_t place = shards.place(shards.rank());
  if (group.size() != shards.expert_parallel() || group.rank() != place) {
    return internal_error("trainer: an expert group's rank {} of {} for place {} of {}", group.rank(),
                          group.size(), place, shards.expert_parallel());
  }
  if (impl_->model != nullptr) ACCORD_RETURN_IF_ERROR(impl_->model->set_expert_group(&group));
  impl_->expert_group = &group;
  return absl::OkStatus();
}

Status Trainer::bind_arena(const WeightManifest& manifest, const void* arena) {
  const recipe::BackwardMode mode = impl_->options.backward;
  ACCORD_RETURN_IF_ERROR(check_backward(manifest, mode));
  ACCORD_RETURN_IF_ERROR(impl_->parameters.bind(manifest, arena, mode != recipe::BackwardMode::kDequantized));
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights weights, model::bind_weights(impl_->config, manifest, arena));
  ACCORD_ASSIGN_OR_RETURN(impl_->model, model::Model::create(impl_->config, std::move(weights),
                                                             impl_->options.compute_dtype, impl_->pool));
  ACCORD_RETURN_IF_ERROR(impl_->model->set_expert_group(impl_->expert_group));
  impl_->pass = std::make_unique<Pass>(impl_->workspace, *impl_->model, impl_->options.activation_bytes);
  return absl::OkStatus();
}

DeviceId Trainer::device() const { return impl_->options.device; }
const Stream* Trainer::stream() const { return nullptr; }

Status Trainer::read_master(std::string_view name, std::span<float> out) const {
  if (!owns(name)) return internal_error("trainer: this rank has no master of '{}'", name);
  const std::span<const float> values = impl_->parameters.master(impl_->parameters.index(name));
  ACCORD_RETURN_IF_ERROR(check_size(name, out.size(), values.size()));
  std::copy(values.begin(), values.end(), out.begin());
  return absl::OkStatus();
}

Status Trainer::read_gradient(std::string_view name, std::span<float> out) const {
  if (!owns(name)) return internal_error("trainer: this rank has no gradient of '{}'", name);
  const std::span<const float> values = gradient(name);
  ACCORD_RETURN_IF_ERROR(check_size(name, out.size(), values.size()));
  std::copy(values.begin(), values.end(), out.begin());
  return absl::OkStatus();
}

const float* Trainer::device_master(std::string_view) const { return nullptr; }

std::span<float> Trainer::master(std::string_view name) {
  const int64_t index = impl_->parameters.index(name);
  return index < 0 ? std::span<float>() : impl_->parameters.master(index);
}

std::span<const float> Trainer::gradient(std::string_view name) const {
  return owns(name) ? impl_->parameters.gradient(impl_->parameters.index(name)) : std::span<const float>();
}

bool Trainer::owns(std::string_view name) const {
  const int64_t index = impl_->parameters.index(name);
  return index >= 0 && impl_->parameters.shards().owns(index);
}

bool Trainer::holds(std::string_view name) const {
  const int64_t index = impl_->parameters.index(name);
  return index >= 0 && impl_->parameters.shards().holds(index);
}

int32_t Trainer::owner(std::string_view name) const {
  const int64_t index = impl_->parameters.index(name);
  return index < 0 ? -1 : impl_->parameters.shards().owner(index);
}

Status Trainer::share_originals(Deadline deadline) {
  if (impl_->group.alone()) return absl::OkStatus();
  if (impl_->pass == nullptr) return internal_error("trainer: share_originals before bind_arena");
  ACCORD_ASSIGN_OR_RETURN(Communicator* const group, impl_->group.communicator());
  return trainer::share_originals(impl_->parameters, *group, impl_->pool, deadline);
}

std::span<const ParamSpec> Trainer::parameters() const { return impl_->parameters.specs(); }

std::vector<StateTensor> Trainer::state() {
  const Parameters& p = impl_->parameters;
  std::vector<StateTensor> out;
  for (int64_t i = 0; i < p.count(); ++i) {
    if (!p.shards().owns(i)) continue;
    const ParamSpec& spec = p.specs()[static_cast<size_t>(i)];
    out.push_back(host_tensor("master." + spec.name, spec, p.master(i)));
    out.push_back(host_tensor("exp_avg." + spec.name, spec, p.exp_avg(i)));
    out.push_back(host_tensor("exp_avg_sq." + spec.name, spec, p.exp_avg_sq(i)));
  }
  return out;
}

int64_t Trainer::optimizer_steps() const { return impl_->optimizer_steps; }
void Trainer::set_optimizer_steps(int64_t steps) { impl_->optimizer_steps = steps; }

Status Trainer::set_optimizer(const recipe::OptimizerPart& optimizer, int64_t total_steps, bool reset) {
  ACCORD_RETURN_IF_ERROR(validate_schedule(optimizer, total_steps));
  impl_->options.optimizer = optimizer;
  impl_->options.total_steps = total_steps;
  if (reset) {
    impl_->parameters.clear_moments();
    impl_->optimizer_steps = 0;
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
