#pragma once
// A model and an engine over it, on a device where the bytes of an arena lie.
#include <memory>
#include <string>

#include "base/dtype.hpp"
#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "device/device.hpp"
#include "device/stream.hpp"
#include "device/thread_pool.hpp"
#include "model/forward.hpp"
#include "rollout/engine.hpp"

namespace accord::controller {

class ServedModel {
 public:
  virtual ~ServedModel() = default;
  virtual rollout::Engine& engine() = 0;
  // Called when the arena's bytes have changed, before anything is generated from them. Errors (kBadData):
  // weights that the device cannot compute with, by name.
  virtual Status weights_changed() = 0;
  // What computes products, where that is more than the device (CudaModel::products); else empty.
  virtual std::string products() const { return {}; }
};

struct ServedModelOptions {
  Dtype compute_dtype = Dtype::kBF16;  // of the CPU; devices compute in BF16
  bool expert_fragments = false;  // on a device: CudaModel::keep_expert_fragments
  rollout::EngineOptions engine;
  rollout::Detokenize detokenize;
};

// `weights`: bound to the arena. All but the options must outlive the model. Errors: those of the models and
// of the engine.
StatusOr<std::unique_ptr<ServedModel>> serve_on_cpu(const ModelConfig& config, model::PolicyWeights weights,
                                                    ThreadPool& pool, ServedModelOptions options);
// `stream`: of `device`. Unavailable in a build without CUDA.
StatusOr<std::unique_ptr<ServedModel>> serve_on_cuda(const ModelConfig& config, model::PolicyWeights weights,
                                                     const Device& device, const Stream& stream,
                                                     ServedModelOptions options);

}  // namespace accord::controller
