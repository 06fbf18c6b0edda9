#pragma once
// A trainer on the CPU: parameters.hpp, pass.hpp and optimizer.hpp.
#include <memory>

#include "trainer/backend.hpp"
#include "trainer/workspace.hpp"

namespace accord::trainer {

// `pool` must outlive it.
std::unique_ptr<TrainingBackend> make_cpu_backend(const ModelConfig& config, const TrainerOptions& options,
                                                  BackwardOptions backward, ParameterTable table,
                                                  ThreadPool& pool);

}  // namespace accord::trainer
