#include "trainer/cpu_backend.hpp"

#include <algorithm>
#include <utility>

#include "trainer/exchange.hpp"
#include "trainer/linear_backward.hpp"
#include "trainer/optimizer.hpp"
#include "trainer/pass.hpp"

namespace accord::trainer {

namespace {

class CpuBackend final : public TrainingBackend {
 public:
  CpuBackend(const ModelConfig& config, const TrainerOptions& options, BackwardOptions backward,
             ParameterTable table, ThreadPool& pool)
      : config_(config),
        activation_bytes_(options.activation_bytes.value_or(kActivationBytes)),
        pool_(pool),
        parameters_(std::move(table)),
        workspace_(config_, parameters_, pool, options.compute_dtype, std::move(backward)) {}

  const ParameterTable& table() const override { return parameters_; }

  std::span<float> host_values(StateKind kind, int64_t parameter) const override {
    switch (kind) {
      case StateKind::kMaster:
        return parameters_.master(parameter);
      case StateKind::kGradient:
        return parameters_.gradient(parameter);
      case StateKind::kExpAvg:
        return parameters_.exp_avg(parameter);
      case StateKind::kExpAvgSq:
        return parameters_.exp_avg_sq(parameter);
    }
    return {};
  }
  Status read(StateKind kind, int64_t parameter, std::span<float> out) const override {
    const std::span<const float> values = host_values(kind, parameter);
    std::copy(values.begin(), values.end(), out.begin());
    return absl::OkStatus();
  }
  Status write(StateKind kind, int64_t parameter, std::span<const float> in) override {
    std::copy(in.begin(), in.end(), host_values(kind, parameter).begin());
    return absl::OkStatus();
  }
  Status clear_moments() override {
    parameters_.clear_moments();
    return absl::OkStatus();
  }

  Status bind(const WeightManifest& manifest, void* arena) override;
  bool bound() const override { return pass_ != nullptr; }
  Status set_expert_group(Communicator* group) override {
    if (model_ != nullptr) ACCORD_RETURN_IF_ERROR(model_->set_expert_group(group));
    expert_group_ = group;
    return absl::OkStatus();
  }
  Status share_originals(Communicator& group, Deadline deadline) override {
    return trainer::share_originals(
        parameters_.original_layout(), parameters_.originals(),
        [this](int64_t i) { return parameters_.master(i); }, group, pool_, deadline);
  }

  Status begin_passes(Deadline deadline) override {
    if (model_->expert_exchange() != nullptr) model_->expert_exchange()->set_deadline(deadline);
    return absl::OkStatus();
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
    parameters_.clear_gradients();
    return absl::OkStatus();
  }
  Status reduce_gradients(Communicator& group, Deadline deadline) override {
    return trainer::reduce_gradients(parameters_.held(), parameters_.gradients(), group, pool_, deadline);
  }
  StatusOr<double> gradient_squares() override { return trainer::gradient_squares(parameters_, pool_); }
  StatusOr<int64_t> first_non_finite_gradient() override {
    return trainer::first_non_finite_gradient(parameters_);
  }
  Status update(const recipe::OptimizerPart& optimizer, double norm, double lr, int64_t steps) override {
    clip_gradients(parameters_, norm, optimizer.clip_grad, pool_);
    adamw_update(parameters_, optimizer, lr, steps, pool_);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kActivationBytes = int64_t{1} << 30;

  const ModelConfig config_;
  const int64_t activation_bytes_;
  ThreadPool& pool_;
  Parameters parameters_;
  Workspace workspace_;
  Communicator* expert_group_ = nullptr;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Pass> pass_;
};

Status CpuBackend::bind(const WeightManifest& manifest, void* arena) {
  const recipe::BackwardMode mode = workspace_.backward.mode;
  ACCORD_RETURN_IF_ERROR(check_backward(manifest, mode));
  ACCORD_RETURN_IF_ERROR(parameters_.bind(manifest, arena, mode != recipe::BackwardMode::kDequantized));
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights weights, model::bind_weights(config_, manifest, arena));
  ACCORD_ASSIGN_OR_RETURN(model_,
                          model::Model::create(config_, std::move(weights), workspace_.compute_dtype, pool_));
  ACCORD_RETURN_IF_ERROR(model_->set_expert_group(expert_group_));
  pass_ = std::make_unique<Pass>(workspace_, *model_, activation_bytes_);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<TrainingBackend> make_cpu_backend(const ModelConfig& config, const TrainerOptions& options,
                                                  BackwardOptions backward, ParameterTable table,
                                                  ThreadPool& pool) {
  return std::make_unique<CpuBackend>(config, options, std::move(backward), std::move(table), pool);
}

}  // namespace accord::trainer
