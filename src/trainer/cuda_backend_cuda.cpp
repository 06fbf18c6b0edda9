#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "trainer/cuda_backend.hpp"
#include "trainer/cuda_parameters.hpp"
#include "trainer/cuda_pass.hpp"
#include "trainer/linear_backward.hpp"

namespace accord::trainer {

namespace {

constexpr int64_t kLeastActivationBytes = int64_t{1} << 30;
constexpr int64_t kShareOfFree = 4;  // of the memory that is free when the arena is bound

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

Status check_supported(const ModelConfig& config, const TrainerOptions& options) {
  if (options.compute_dtype != Dtype::kBF16) {
    return recipe_error("model.compute_dtype: the trainer computes in bfloat16 on CUDA (use device: cpu)");
  }
  if (options.expert_parallel > 1) {
    return recipe_error("trainer.expert_parallel is {}, must be 1 on CUDA", options.expert_parallel);
  }
  return check_cuda_backward(config);
}

class CudaBackend final : public TrainingBackend {
 public:
  CudaBackend(const ModelConfig& config, const TrainerOptions& options, BackwardOptions backward,
              Device device, Stream stream, ThreadPool& pool)
      : config_(config),
        activation_bytes_(options.activation_bytes),
        backward_(std::move(backward)),
        pool_(pool),
        device_(device),
        stream_(std::move(stream)) {}

  Status allocate(ParameterTable table) {
    ACCORD_ASSIGN_OR_RETURN(parameters_, CudaParameters::create(std::move(table), device_, stream_));
    params_.emplace(config_, *parameters_);
    context_.emplace(CudaContext{config_, device_, stream_, *parameters_, *params_, backward_});
    return stream_.synchronize();
  }

  const ParameterTable& table() const override { return *parameters_; }
  const Stream* stream() const override { return &stream_; }
  TrainerMemory memory() const override {
    TrainerMemory memory;
    parameters_->add_memory(memory);
    if (pass_ != nullptr) pass_->add_memory(memory);
    return memory;
  }

  std::string products() const override { return model_ == nullptr ? std::string() : model_->products(); }

  Status read(StateKind kind, int64_t parameter, std::span<float> out) const override {
    ACCORD_RETURN_IF_ERROR(device_.make_current());
    return parameters_->read(kind, parameter, out);
  }
  Status write(StateKind kind, int64_t parameter, std::span<const float> in) override {
    ACCORD_RETURN_IF_ERROR(device_.make_current());
    return parameters_->write(kind, parameter, in);
  }
  const float* device_master(int64_t parameter) const override { return parameters_->master(parameter); }
  Status clear_moments() override {
    ACCORD_RETURN_IF_ERROR(device_.make_current());
    return parameters_->clear_moments();
  }

  Status bind(const WeightManifest& manifest, void* arena) override;
  bool bound() const override { return pass_ != nullptr; }
  StatusOr<std::span<const ExportCounts>> exported() const override {
    ACCORD_RETURN_IF_ERROR(device_.make_current());
    return parameters_->exported();
  }
  Status set_expert_group(Communicator*) override {
    return internal_error("trainer: experts are not spread over ranks on CUDA");
  }
  Status share_originals(Communicator& group, Deadline deadline) override {
    ACCORD_RETURN_IF_ERROR(device_.make_current());
    return parameters_->share_originals(group, pool_, deadline);
  }

  Status begin_passes(Deadline) override {
    ACCORD_RETURN_IF_ERROR(device_.make_current());
    return model_->check_weights();
  }
  Status forward_backward(const PackedBatch& packed, std::span<const float> temperatures,
                          const PassRouting& routing, const TokenLossFn& loss) override {
    return pass_->forward_backward(packed, temperatures, routing, loss);
  }
  Status forward(const PackedBatch& packed, std::span<const float> temperatures, const PassRouting& routing,
                 const TokenLossFn& visit) override {
    return pass_->forward(packed, temperatures, routing, visit);
  }

  Status clear_gradients() override {
    ACCORD_RETURN_IF_ERROR(device_.make_current());
    return parameters_->clear_gradients();
  }
  Status reduce_gradients(Communicator& group, Deadline deadline) override {
    return parameters_->reduce_gradients(group, pool_, deadline);
  }
  StatusOr<double> gradient_squares() override { return parameters_->gradient_squares(); }
  StatusOr<int64_t> first_non_finite_gradient() override { return parameters_->first_non_finite_gradient(); }
  Status update(const recipe::OptimizerPart& optimizer, double norm, double lr, int64_t steps) override {
    return parameters_->update(optimizer, norm, lr, steps);
  }

 private:
  StatusOr<int64_t> activation_budget() const;

  const ModelConfig config_;
  const std::optional<int64_t> activation_bytes_;
  const BackwardOptions backward_;
  ThreadPool& pool_;
  const Device device_;
  const Stream stream_;
  std::unique_ptr<CudaParameters> parameters_;
  std::optional<ModelParams> params_;
  std::optional<CudaContext> context_;
  std::unique_ptr<model::CudaModel> model_;
  std::unique_ptr<CudaPass> pass_;
};

StatusOr<int64_t> CudaBackend::activation_budget() const {
  if (activation_bytes_) return *activation_bytes_;
  ACCORD_ASSIGN_OR_RETURN(const int64_t free, device_.free_bytes());
  return std::max(free / kShareOfFree, kLeastActivationBytes);
}

Status CudaBackend::bind(const WeightManifest& manifest, void* arena) {
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_RETURN_IF_ERROR(check_backward(manifest, backward_.mode));
  ACCORD_RETURN_IF_ERROR(
      parameters_->bind(manifest, arena, backward_.mode != recipe::BackwardMode::kDequantized));
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights weights, model::bind_weights(config_, manifest, arena));
  pass_.reset();
  ACCORD_ASSIGN_OR_RETURN(model_, model::CudaModel::create(config_, std::move(weights), device_, stream_));
  ACCORD_ASSIGN_OR_RETURN(const int64_t budget, activation_budget());
  ACCORD_ASSIGN_OR_RETURN(pass_, CudaPass::create(*context_, *model_, budget, pool_));
  TrainerMemory memory;
  parameters_->add_memory(memory);
  log::info(
      "trainer on {}: GiB of masters {:.2f}, moments {:.2f}, gradients {:.2f}; up to {:.2f} of activations",
      to_string(device_.id()), gib(memory.masters), gib(memory.moments), gib(memory.gradients), gib(budget));
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<TrainingBackend>> make_cuda_backend(const ModelConfig& config,
                                                             const TrainerOptions& options,
                                                             BackwardOptions backward, ParameterTable table,
                                                             ThreadPool& pool) {
  ACCORD_RETURN_IF_ERROR(check_supported(config, options));
  ACCORD_ASSIGN_OR_RETURN(const Device device, Device::open(options.device));
  ACCORD_ASSIGN_OR_RETURN(Stream stream, Stream::create(device));
  auto backend =
      std::make_unique<CudaBackend>(config, options, std::move(backward), device, std::move(stream), pool);
  ACCORD_RETURN_IF_ERROR(backend->allocate(std::move(table)));
  return std::unique_ptr<TrainingBackend>(std::move(backend));
}

}  // namespace accord::trainer
