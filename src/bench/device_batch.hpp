#pragma once
// Batches whose layers are measured, on a device.
#include <cstdint>
#include <vector>

#include "base/model_config.hpp"
#include "bench/device_bench.hpp"
#include "bench/shapes.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/router/router_rule.hpp"

namespace accord::bench {

// Tokens, positions, cache rows and pages of a phase; sequences lie one after the other in the cache.
struct HostBatch {
  HostBatch(const ModelConfig& config, const Phase& phase);
  std::vector<int32_t> tokens, positions, rows, pages;
  int32_t pages_each = 0;  // of a sequence
};

// The same and attention's tiles on the device.
struct DeviceBatch {
  DeviceBatch(const Gpu& gpu, const ModelConfig& config, const Phase& phase);
  Memory tokens, positions, rows, pages, tiles, backward_tiles;
  Memory row_ids;  // 0, 1, 2, ...
  int32_t num_tiles = 0;
  int32_t num_backward_tiles = 0;
  int32_t max_splits = 1;
};
kernels::cuda::AttentionDims attention_dims(const ModelConfig& config);

// Rows in the order that random router scores give.
struct Routed {
  Routed(DeviceBench& bench, const ModelConfig& config, const Sizes& sizes);
  kernels::RouterRule rule;
  Memory scores, ids, weights, offsets, tokens, slots, slot_rows, scratch, tiles, num_tiles;
  kernels::cuda::GemmGroups groups;
  int32_t list_size = 0;        // entries of `tiles`
  std::vector<int32_t> begins;  // `offsets` on the host
  int64_t used_experts = 0;
};

}  // namespace accord::bench
