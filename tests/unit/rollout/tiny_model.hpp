#pragma once
// Small models for tests: random weights, or a checkpoint's, in an arena of one format.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "device/buffer.hpp"
#include "device/thread_pool.hpp"
#include "model/forward.hpp"

namespace accord::rollout::testing {

// Four heads of 16, two of them for keys; vocabulary 211.
ModelConfig tiny_config(Architecture architecture);

class TinyModel {
 public:
  // Linear weights other than embedding, head and routers get `format` (kBF16 or kMXFP8).
  TinyModel(const ModelConfig& config, WeightFormat format, Dtype compute_dtype, int threads, uint64_t seed);
  // The checkpoint's bf16 weights.
  TinyModel(const std::string& checkpoint, Dtype compute_dtype, int threads);

  model::Model& model() { return *model_; }
  ThreadPool& pool() { return pool_; }

 private:
  void lay_out(WeightFormat format);
  void bind(Dtype compute_dtype);
  void fill_random(uint64_t seed);
  void fill_from(const std::string& file);
  void store(const WeightEntry& entry, const std::vector<BF16>& values);

  ModelConfig config_;
  ThreadPool pool_;
  WeightManifest manifest_;
  Buffer arena_;
  std::unique_ptr<model::Model> model_;
};

// Log-probabilities of tokens [1, length) from one whole-sequence forward, as training computes them.
std::vector<float> sequence_logprobs(model::Model& model, const std::vector<int32_t>& tokens,
                                     float temperature);

}  // namespace accord::rollout::testing
