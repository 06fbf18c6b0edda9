#include "controller/served_model.hpp"

namespace accord::controller {

StatusOr<std::unique_ptr<ServedModel>> serve_on_cuda(const ModelConfig& /*config*/,
                                                     model::PolicyWeights /*weights*/,
                                                     const Device& /*device*/, const Stream& /*stream*/,
                                                     ServedModelOptions /*options*/) {
  return unavailable_error("rollout: this build has no CUDA");
}

}  // namespace accord::controller
