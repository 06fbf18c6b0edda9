#pragma once
// Logits of whole sequences through the forward: what `logprobs` and parity checks need.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.hpp"
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

}  // namespace accord::controller
