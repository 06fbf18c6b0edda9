#include "trainer/cuda_backend.hpp"

namespace accord::trainer {

StatusOr<std::unique_ptr<TrainingBackend>> make_cuda_backend(const ModelConfig&, const TrainerOptions&,
                                                             BackwardOptions, ParameterTable, ThreadPool&) {
  return unavailable_error("this build has no CUDA (use device: cpu, or a build with ACCORD_CUDA)");
}

}  // namespace accord::trainer
