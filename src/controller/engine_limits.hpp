#pragma once
// How much a worker takes of its machine when the recipe says "auto".
#include <cstdint>

#include "device/device.hpp"
#include "recipe/recipe.hpp"

namespace accord::controller {

// Cores that this process may run on (its affinity mask).
int available_cores();

// Threads of one worker: the recipe's number, or the cores divided among the pool's members on this machine
// (one pool computes at a time), at least 1.
int worker_threads(int64_t recipe_threads, int64_t pool_workers);

// Longest sequence that the recipe can ask a rollout worker for, evaluation included.
int64_t longest_sequence(const recipe::Recipe& recipe);

// Rows of the KV cache: the recipe's number, or room for a full batch of the longest sequences, within
// `budget` bytes but never below one such sequence.
inline constexpr int64_t kAutoCacheBytes = int64_t{1} << 30;  // on the CPU
int64_t kv_cache_rows(const recipe::Recipe& recipe, int64_t bytes_per_row, int64_t budget = kAutoCacheBytes);

// That budget on a CUDA device: a quarter of its memory, at most half of what is free, divided among the
// members of a pool of `pool_workers` that are on it when they are spread over `num_devices`.
// `reserved_bytes`: of what is free, which something else will take.
StatusOr<int64_t> device_cache_bytes(const Device& device, int64_t pool_workers, int64_t num_devices,
                                     int64_t reserved_bytes = 0);
int64_t device_cache_bytes(int64_t total_bytes, int64_t free_bytes, int64_t pool_workers,
                           int64_t num_devices);

// What rollout.expert_fragments takes on a CUDA device (model::expert_fragment_bytes).
int64_t expert_fragment_bytes(const recipe::Recipe& recipe, const WeightManifest& manifest);

}  // namespace accord::controller
