#pragma once
// Logits of whole sequences through the forward: what `logprobs` and parity checks need.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "controller/device_weights.hpp"
#include "device/tensor_view.hpp"
#include "model/forward.hpp"

namespace accord::controller {

struct SequenceBatch {
  std::span<const int32_t> ids;  // [num_sequences, length]
  int64_t num_sequences = 0;
  int64_t length = 0;
};

// Called in order with each sequence's logits [length, V] (fp32) and, per layer, its chosen experts
// [length * K] (empty for dense layers). The memory is reused for the next sequence.
using OnLogits = std::function<Status(int64_t sequence, MatrixView logits,
                                      std::span<const std::vector<int32_t>> expert_ids)>;

// Errors: an id outside the vocabulary (65, names sequence and position); what `on_logits` returns.
Status sequence_logits(model::Model& model, const SequenceBatch& batch, const OnLogits& on_logits);
// On a device. `logits` of the callback are the host's.
Status sequence_logits(const DeviceWeights& weights, const SequenceBatch& batch, const OnLogits& on_logits);

// What both do with one sequence at a time: its rows are its positions, its pages lie in order.
class OneSequence {
 public:
  explicit OneSequence(const SequenceBatch& batch);

  int64_t cache_rows() const;
  std::span<const int32_t> rows() const { return rows_; }
  model::Batch batch(int64_t sequence) const;

 private:
  const SequenceBatch& all_;
  std::vector<int32_t> rows_;
  std::vector<int32_t> pages_;
  model::Segment segment_;
};
// Error: an id outside the vocabulary.
Status check_ids(const SequenceBatch& batch, int64_t vocab_size);

}  // namespace accord::controller
