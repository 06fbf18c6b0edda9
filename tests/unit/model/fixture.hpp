#pragma once
// Models for tests: a checkpoint's weights or random ones, in an arena of one format, and a driver that runs
// sequences through the forward in any arrangement.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "device/buffer.hpp"
#include "model/forward.hpp"

namespace accord::model::testing {

// Linear projections in `format`; embedding, norms, routers, kv_b_proj, shared experts and head in BF16, a
// router's bias in FP32.
struct TestWeights {
  WeightManifest manifest;
  Buffer arena;
};
TestWeights random_weights(const ModelConfig& config, WeightFormat format, uint64_t seed);
TestWeights checkpoint_weights(const ModelConfig& config, const std::string& dir, WeightFormat format);

// The same model with kv_b_proj in another format: quantized from, or decoded to BF16 of, what `weights` hold.
TestWeights with_kv_b(const ModelConfig& config, const TestWeights& weights, WeightFormat format);

ModelConfig small_config(bool moe);
// Latent attention, a dense layer, and a mixture of experts in groups with shared experts.
ModelConfig latent_config(MlaForm form);

std::unique_ptr<Model> make_model(const ModelConfig& config, const TestWeights& weights, Dtype dtype,
                                  ThreadPool& pool);

// Rows of one sequence to run in one batch.
struct Piece {
  int32_t sequence = 0;
  int32_t first = 0;
  int32_t count = 0;
};

// Sequences with their caches on pages handed out in a scattered order.
class Runner {
 public:
  Runner(Model& model, std::vector<std::vector<int32_t>> sequences, uint64_t page_seed);

  // One forward over the pieces, in this order of rows; keeps each position's logits.
  void run(const std::vector<Piece>& pieces, LayerTape* tape = nullptr);
  void append(int32_t sequence, int32_t token) { sequences_[static_cast<size_t>(sequence)].push_back(token); }

  const std::vector<float>& logits(int32_t sequence) const { return logits_[static_cast<size_t>(sequence)]; }
  // [layer][position * K] of a sequence's rows
  const std::vector<std::vector<int32_t>>& expert_ids() const { return expert_ids_; }  // of the last run
  int32_t length(int32_t sequence) const {
    return static_cast<int32_t>(sequences_[static_cast<size_t>(sequence)].size());
  }

 private:
  Model& model_;
  std::vector<std::vector<int32_t>> sequences_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<std::vector<float>> logits_;
  std::vector<std::vector<int32_t>> expert_ids_;
  std::vector<Buffer> keys_;
  std::vector<Buffer> values_;
  Buffer x_;
  Buffer out_;
  int64_t cache_rows_ = 0;
};

}  // namespace accord::model::testing
