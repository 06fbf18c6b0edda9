#include <utility>

#include "controller/served_model.hpp"
#include "model/cuda_model.hpp"

namespace accord::controller {
namespace {

class CudaServedModel final : public ServedModel {
 public:
  CudaServedModel(std::unique_ptr<model::CudaModel> model, std::unique_ptr<rollout::Engine> engine)
      : model_(std::move(model)), engine_(std::move(engine)) {}

  rollout::Engine& engine() override { return *engine_; }
  Status weights_changed() override { return model_->check_weights(); }
  std::string products() const override { return model_->products(); }

 private:
  const std::unique_ptr<model::CudaModel> model_;
  const std::unique_ptr<rollout::Engine> engine_;
};

}  // namespace

StatusOr<std::unique_ptr<ServedModel>> serve_on_cuda(const ModelConfig& config, model::PolicyWeights weights,
                                                     const Device& device, const Stream& stream,
                                                     ServedModelOptions options) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<model::CudaModel> model,
                          model::CudaModel::create(config, std::move(weights), device, stream));
  if (options.expert_fragments) ACCORD_RETURN_IF_ERROR(model->keep_expert_fragments());
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<rollout::Engine> engine,
                          rollout::Engine::create(*model, options.engine, std::move(options.detokenize)));
  return std::make_unique<CudaServedModel>(std::move(model), std::move(engine));
}

}  // namespace accord::controller
