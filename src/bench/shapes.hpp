#pragma once
// The models whose shapes are measured, by name or from a config.json.
#include <cstdint>
#include <string>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"

namespace accord::bench {

struct Shape {
  std::string name;
  ModelConfig config;
};

// qwen3-30b-a3b, smollm2-135m, tiny (dense) or tiny-moe (sizes at which everything runs anywhere), else the
// path of a config.json. Errors: usage (neither a name nor a file), those of the file.
StatusOr<Shape> find_shape(const std::string& name);
const std::vector<std::string>& shape_names();

// Rows of one forward: one position of each sequence (decode), or whole sequences.
struct Phase {
  bool decode = false;
  int64_t rows = 0;
  int64_t length = 0;  // positions of a sequence

  int64_t sequences() const { return decode ? rows : rows / length; }
  int64_t cache_rows() const { return sequences() * length; }
};

// What sizes an operation has: T rows, R rows sorted by expert. Of the last layer.
struct Sizes {
  Sizes(const ModelConfig& config, const Phase& phase);
  int64_t rows, hidden, q_width, kv_width, heads, kv_heads, head_dim, vocab;
  bool moe;
  int64_t experts, slots, sorted, width;  // width: of the MLP or of an expert
};

// The same model with its last `count` layers only.
ModelConfig with_layers(ModelConfig config, int64_t count);

}  // namespace accord::bench
