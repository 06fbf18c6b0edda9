#pragma once
// What the engine asks of a model: a forward over a batch of cache-backed rows, and logits of some of them.
// One implementation runs model::Model; tests bring their own.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "device/tensor_view.hpp"
#include "model/forward.hpp"

namespace accord::rollout {

class Policy {
 public:
  virtual ~Policy() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;  // longest sequence; 0: no limit
  virtual int64_t routing_width() const = 0;  // expert ids per row: MoE layers * experts per token
  virtual int64_t num_experts() const = 0;
  virtual int64_t cache_row_bytes() const = 0;

  // Called once, before anything else runs. May throw std::bad_alloc.
  virtual void reserve(int64_t cache_rows, int64_t max_batch_rows) = 0;
  virtual std::span<std::byte> cache_memory() = 0;

  // Copies `count` cache rows of every layer.
  virtual void copy_rows(int32_t from, int32_t to, int32_t count) = 0;
  // Writes the batch's keys and values; fills `routing` [T, routing_width] when it is not null.
  virtual Status forward(const model::Batch& batch, std::vector<int32_t>* routing) = 0;
  // logits_RV (fp32) of rows of the last forward's batch.
  virtual void logits(std::span<const int32_t> rows, MatrixView logits_RV) = 0;
};

std::unique_ptr<Policy> make_model_policy(model::Model& model);

}  // namespace accord::rollout
