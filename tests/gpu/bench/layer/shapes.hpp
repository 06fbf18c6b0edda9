#pragma once
// The models and batches whose layers are measured.
#include <cstdint>
#include <string>
#include <vector>

#include "base/model_config.hpp"
#include "bench.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/router/router_rule.hpp"

namespace layer_bench {

struct Shape {
  std::string name;
  accord::ModelConfig config;
  int64_t decode_rows = 0;
  int64_t context = 0;  // of each decoding row
  int64_t train_rows = 0;
  int64_t length = 0;  // of each training sequence
};
std::vector<Shape> all_shapes(bool tiny);

// Rows of one forward: one position of each sequence (decode), or whole sequences.
struct Phase {
  bool decode = false;
  int64_t rows = 0;
  int64_t length = 0;  // positions of a sequence

  int64_t sequences() const { return decode ? rows : rows / length; }
  int64_t cache_rows() const { return sequences() * length; }
};

// What sizes an operation has: T rows, R rows sorted by expert.
struct Sizes {
  Sizes(const accord::ModelConfig& config, const Phase& phase);
  int64_t rows, hidden, q_width, kv_width, heads, kv_heads, head_dim, vocab;
  bool moe;
  int64_t experts, slots, sorted, width;  // width: of the MLP or of an expert
};

// Tokens, positions, cache rows and pages of a phase; sequences lie one after the other in the cache.
struct HostBatch {
  HostBatch(const accord::ModelConfig& config, const Phase& phase);
  std::vector<int32_t> tokens, positions, rows, pages;
  int32_t pages_each = 0;  // of a sequence
};

// The same and attention's tiles on the device.
struct DeviceBatch {
  DeviceBatch(const gpu_test::Gpu& gpu, const accord::ModelConfig& config, const Phase& phase);
  accord::Memory tokens, positions, rows, pages, tiles, backward_tiles;
  accord::Memory row_ids;  // 0, 1, 2, ...
  int32_t num_tiles = 0;
  int32_t num_backward_tiles = 0;
  int32_t max_splits = 1;
};
accord::kernels::cuda::AttentionDims attention_dims(const accord::ModelConfig& config);

// Rows in the order that random router scores give.
struct Routed {
  Routed(Bench& bench, const accord::ModelConfig& config, const Sizes& sizes);
  accord::kernels::RouterRule rule;
  accord::Memory scores, ids, weights, offsets, tokens, slots, slot_rows, scratch, tiles, num_tiles;
  accord::kernels::cuda::GemmGroups groups;
  int64_t used_experts = 0;
};

}  // namespace layer_bench
