#include "trainer/trainer.hpp"

#include <utility>

#include "trainer/cpu_backend.hpp"
#include "trainer/cuda_backend.hpp"
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

Status check_size(std::string_view name, size_t have, int64_t want) {
  if (static_cast<int64_t>(have) == want) return absl::OkStatus();
  return internal_error("trainer: {} has {} values, {} were given", name, want, have);
}

StatusOr<BackwardOptions> backward_options(const TrainerOptions& options, const ParameterTable& parameters) {
  BackwardOptions out{options.backward, std::vector<bool>(static_cast<size_t>(parameters.count()))};
  for (const std::string& name : options.e5m2_gradients) {
    const int64_t index = parameters.index(name);
    if (index < 0) return internal_error("e5m2_gradients: no parameter '{}'", name);
    out.e5m2_gradients[static_cast<size_t>(index)] = true;
  }
  return out;
}

StatusOr<std::unique_ptr<TrainingBackend>> make_backend(const ModelConfig& config,
                                                        const TrainerOptions& options, ThreadPool& pool) {
  ACCORD_ASSIGN_OR_RETURN(Shards shards, Shards::create(config, {options.rank, options.size,
                                                                 options.expert_parallel, options.units}));
  const bool cuda = options.device.is_cuda();
  ACCORD_ASSIGN_OR_RETURN(ParameterTable table,
                          ParameterTable::create(config, options.no_weight_decay, std::move(shards),
                                                 cuda ? kDeviceAlignment : ShardLayout::kAlignment));
  ACCORD_ASSIGN_OR_RETURN(BackwardOptions backward, backward_options(options, table));
  if (cuda) return make_cuda_backend(config, options, std::move(backward), std::move(table), pool);
  return make_cpu_backend(config, options, std::move(backward), std::move(table), pool);
}

}  // namespace

Trainer::Impl::Impl(const ModelConfig& c, const TrainerOptions& o, std::unique_ptr<TrainingBackend> b)
    : config(c), options(o), backend(std::move(b)), parameters(backend->table()), group(o.rank, o.size) {}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

StatusOr<std::unique_ptr<Trainer>> Trainer::create(const ModelConfig& config, const TrainerOptions& options,
                                                   ThreadPool& pool, const LoadMaster& load_master) {
  ACCORD_RETURN_IF_ERROR(validate(config));
  ACCORD_RETURN_IF_ERROR(validate_options(options));
  ACCORD_RETURN_IF_ERROR(validate_schedule(options.optimizer, options.total_steps));
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<TrainingBackend> backend, make_backend(config, options, pool));
  auto impl = std::make_unique<Impl>(config, options, std::move(backend));
  const ParameterTable& parameters = impl->parameters;
  std::vector<float> staging;
  for (int64_t i = 0; i < parameters.count(); ++i) {
    if (!parameters.shards().owns(i)) continue;
    const ParamSpec& spec = parameters.spec(i);
    std::span<float> values = impl->backend->host_values(StateKind::kMaster, i);
    const bool staged = values.empty() && spec.numel() > 0;
    if (staged) {
      staging.resize(static_cast<size_t>(spec.numel()));
      values = staging;
    }
    Status status = load_master(spec, values);
    if (status.ok() && staged) status = impl->backend->write(StateKind::kMaster, i, staging);
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
  ACCORD_RETURN_IF_ERROR(impl_->backend->set_expert_group(&group));
  impl_->experts_connected = true;
  return absl::OkStatus();
}

Status Trainer::bind_arena(const WeightManifest& manifest, void* arena) {
  return impl_->backend->bind(manifest, arena);
}

StatusOr<std::span<const ExportCounts>> Trainer::exported() const { return impl_->backend->exported(); }

DeviceId Trainer::device() const { return impl_->options.device; }
const Stream* Trainer::stream() const { return impl_->backend->stream(); }
TrainerMemory Trainer::memory() const { return impl_->backend->memory(); }
std::string Trainer::products() const { return impl_->backend->products(); }

Status Trainer::Impl::read(StateKind kind, std::string_view name, std::span<float> out) const {
  const int64_t index = parameters.index(name);
  if (index < 0 || !parameters.shards().owns(index)) {
    return internal_error("trainer: rank {} has no parameter '{}' of its own", group.rank(), name);
  }
  ACCORD_RETURN_IF_ERROR(check_size(name, out.size(), parameters.spec(index).numel()));
  return backend->read(kind, index, out);
}

Status Trainer::read_master(std::string_view name, std::span<float> out) const {
  return impl_->read(StateKind::kMaster, name, out);
}

Status Trainer::read_gradient(std::string_view name, std::span<float> out) const {
  return impl_->read(StateKind::kGradient, name, out);
}

const float* Trainer::device_master(std::string_view name) const {
  return owns(name) ? impl_->backend->device_master(impl_->parameters.index(name)) : nullptr;
}

std::span<float> Trainer::master(std::string_view name) {
  if (!owns(name)) return {};
  return impl_->backend->host_values(StateKind::kMaster, impl_->parameters.index(name));
}

std::span<const float> Trainer::gradient(std::string_view name) const {
  if (!owns(name)) return {};
  return impl_->backend->host_values(StateKind::kGradient, impl_->parameters.index(name));
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
  if (!impl_->backend->bound()) return internal_error("trainer: share_originals before bind_arena");
  ACCORD_ASSIGN_OR_RETURN(Communicator* const group, impl_->group.communicator());
  return impl_->backend->share_originals(*group, deadline);
}

std::span<const ParamSpec> Trainer::parameters() const { return impl_->parameters.specs(); }

std::vector<StateTensor> Trainer::state() {
  TrainingBackend& backend = *impl_->backend;
  const ParameterTable& p = impl_->parameters;
  std::vector<StateTensor> out;
  const auto add = [&](const char* prefix, StateKind kind, int64_t i) {
    const ParamSpec& spec = p.spec(i);
    StateTensor tensor{prefix + spec.name, spec.shape, spec.numel(), nullptr, nullptr};
    const std::string& name = tensor.name;
    const int64_t numel = tensor.numel;
    tensor.read = [&backend, kind, i, name, numel](std::span<float> to) -> Status {
      ACCORD_RETURN_IF_ERROR(check_size(name, to.size(), numel));
      return backend.read(kind, i, to);
    };
    tensor.write = [&backend, kind, i, name, numel](std::span<const float> from) -> Status {
      ACCORD_RETURN_IF_ERROR(check_size(name, from.size(), numel));
      return backend.write(kind, i, from);
    };
    out.push_back(std::move(tensor));
  };
  for (int64_t i = 0; i < p.count(); ++i) {
    if (!p.shards().owns(i)) continue;
    add("master.", StateKind::kMaster, i);
    add("exp_avg.", StateKind::kExpAvg, i);
    add("exp_avg_sq.", StateKind::kExpAvgSq, i);
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
    ACCORD_RETURN_IF_ERROR(impl_->backend->clear_moments());
    impl_->optimizer_steps = 0;
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
