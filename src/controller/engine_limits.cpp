#include "controller/engine_limits.hpp"

#include <sched.h>

#include <algorithm>

#include "model/forward.hpp"

namespace accord::controller {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int worker_threads(int64_t recipe_threads, int64_t pool_workers) {
  if (recipe_threads > 0) {
    return static_cast<int>(recipe_threads);
  }
  return std::max(1, available_cores() / static_cast<int>(pool_workers));
}

int64_t longest_sequence(const recipe::Recipe& recipe) {
  int64_t response = recipe.rollout.max_response_tokens;
  for (const recipe::EvalData& eval : recipe.data.eval) {
    response = std::max(response, eval.max_response_tokens);
  }
  return recipe.rollout.max_prompt_tokens + response;
}

int64_t kv_cache_rows(const recipe::Recipe& recipe, int64_t bytes_per_row, int64_t budget) {
  if (recipe.rollout.kv_cache_tokens > 0) {
    return recipe.rollout.kv_cache_tokens;
  }
  const int64_t longest = longest_sequence(recipe);
  const int64_t full = longest * recipe.rollout.max_batch_rows;
  return std::max(longest, std::min(full, budget / bytes_per_row));
}

int64_t device_cache_bytes(int64_t total_bytes, int64_t free_bytes, int64_t pool_workers,
                           int64_t num_devices) {
  const int64_t here = (pool_workers + num_devices - 1) / num_devices;
  return std::min(total_bytes / 4, free_bytes / 2) / here;
}

StatusOr<int64_t> device_cache_bytes(const Device& device, int64_t pool_workers, int64_t num_devices,
                                     int64_t reserved_bytes) {
  ACCORD_ASSIGN_OR_RETURN(const DeviceInfo info, device.info());
  ACCORD_ASSIGN_OR_RETURN(const int64_t free, device.free_bytes());
  return device_cache_bytes(info.total_bytes, std::max<int64_t>(0, free - reserved_bytes), pool_workers,
                            num_devices);
}

int64_t expert_fragment_bytes(const recipe::Recipe& recipe, const WeightManifest& manifest) {
  return recipe.rollout.expert_fragments ? model::expert_fragment_bytes(manifest) : 0;
}

}  // namespace accord::controller
