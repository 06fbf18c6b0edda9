#include "controller/served_model.hpp"

#include <utility>

namespace accord::controller {
namespace {

class CpuModel final : public ServedModel {
 public:
  CpuModel(std::unique_ptr<model::Model> model, std::unique_ptr<rollout::Engine> engine)
      : model_(std::move(model)), engine_(std::move(engine)) {}

  rollout::Engine& engine() override { return *engine_; }
  Status weights_changed() override { return absl::OkStatus(); }

 private:
  const std::unique_ptr<model::Model> model_;
  const std::unique_ptr<rollout::Engine> engine_;
};

}  // namespace

StatusOr<std::unique_ptr<ServedModel>> serve_on_cpu(const ModelConfig& config, model::PolicyWeights weights,
                                                    ThreadPool& pool, ServedModelOptions options) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<model::Model> model,
                          model::Model::create(config, std::move(weights), options.compute_dtype, pool));
  ACCORD_ASSIGN_OR_RETURN(
      std::unique_ptr<rollout::Engine> engine,
      rollout::Engine::create(*model, options.engine, pool, std::move(options.detokenize)));
  return std::make_unique<CpuModel>(std::move(model), std::move(engine));
}

}  // namespace accord::controller
