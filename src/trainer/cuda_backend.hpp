#pragma once
// A trainer on a CUDA device: masters, moments, gradients, activations and passes are there; token losses,
// schedule and what ranks exchange go through host memory. Results are deterministic; sums have other orders
// than the CPU's.
#include <memory>

#include "trainer/backend.hpp"
#include "trainer/layer_params.hpp"

namespace accord::trainer {

constexpr int64_t kDeviceAlignment = 64;  // elements: tensors start at multiples of 256 bytes

// `table` with tensors at multiples of kDeviceAlignment. `pool` must outlive it. Errors: a build without
// CUDA, a device that is not there or too small (unavailable); what does not run there yet (kBadRecipe,
// naming the key).
StatusOr<std::unique_ptr<TrainingBackend>> make_cuda_backend(const ModelConfig& config,
                                                             const TrainerOptions& options,
                                                             BackwardOptions backward, ParameterTable table,
                                                             ThreadPool& pool);

}  // namespace accord::trainer
