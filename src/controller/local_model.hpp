#pragma once
// A checkpoint as a runnable model in this process: what `logprobs`, `generate` and `eval` load.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.hpp"
#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "device/thread_pool.hpp"
#include "model/forward.hpp"

namespace accord::controller {

struct LocalModelOptions {
  std::string checkpoint;              // a Hugging Face directory
  std::optional<Dtype> compute_dtype;  // kF32 or kBF16; empty: the recipe's, or bfloat16 without a recipe
  std::string recipe;            // a recipe file whose precision plan decides the formats; empty: all BF16
  int threads = 0;               // 0: one per core
  std::optional<MlaForm> mla{};  // form of latent attention; empty: the recipe's, or the default
};

// Owns the arena (weights as the plan stores them), the thread pool and the model over both.
class LocalModel {
 public:
  // Errors: bad checkpoint (65, names file and tensor), bad recipe (78), I/O (74).
  static StatusOr<std::unique_ptr<LocalModel>> load(const LocalModelOptions& options);
  ~LocalModel();
  LocalModel(const LocalModel&) = delete;
  LocalModel& operator=(const LocalModel&) = delete;

  const ModelConfig& config() const;
  const WeightManifest& manifest() const;
  const std::byte* arena() const;  // the weights' bytes
  Dtype compute_dtype() const;
  model::Model& model();
  ThreadPool& pool();

 private:
  struct Impl;
  explicit LocalModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "float32" or "bfloat16"; anything else is a usage error.
StatusOr<Dtype> parse_compute_dtype(const std::string& text);

}  // namespace accord::controller
