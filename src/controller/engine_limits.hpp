#pragma once
// How much a worker takes of its machine when the recipe says "auto".
#include <cstdint>

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
// kAutoCacheBytes but never below one such sequence.
inline constexpr int64_t kAutoCacheBytes = int64_t{1} << 30;
int64_t kv_cache_rows(const recipe::Recipe& recipe, int64_t bytes_per_row);

}  // namespace accord::controller
