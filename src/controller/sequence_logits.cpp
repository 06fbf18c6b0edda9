#include "controller/sequence_logits.hpp"

#include <numeric>

#include "device/buffer.hpp"

namespace accord::controller {

Status check_ids(const SequenceBatch& batch, int64_t vocab_size) {
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    if (batch.ids[i] < 0 || batch.ids[i] >= vocab_size) {
      const auto at = static_cast<int64_t>(i);
      return data_error("sequence {}, position {}: token id {} is not in the vocabulary of {}",
                        at / batch.length, at % batch.length, batch.ids[i], vocab_size);
    }
  }
  return absl::OkStatus();
}

OneSequence::OneSequence(const SequenceBatch& batch) : all_(batch), rows_(static_cast<size_t>(batch.length)) {
  std::iota(rows_.begin(), rows_.end(), 0);
  const int64_t num_pages = (batch.length + model::kPageSize - 1) / model::kPageSize;
  for (int64_t p = 0; p < num_pages; ++p) {
    pages_.push_back(static_cast<int32_t>(p * model::kPageSize));
  }
  segment_ = {0, static_cast<int32_t>(batch.length), 0, pages_.data()};
}

int64_t OneSequence::cache_rows() const { return static_cast<int64_t>(pages_.size()) * model::kPageSize; }

model::Batch OneSequence::batch(int64_t sequence) const {
  return {all_.ids.subspan(static_cast<size_t>(sequence * all_.length), rows_.size()), rows_, rows_,
          std::span(&segment_, 1)};
}

Status sequence_logits(model::Model& model, const SequenceBatch& batch, const OnLogits& on_logits) {
  const ModelConfig& c = model.config();
  ACCORD_RETURN_IF_ERROR(check_ids(batch, c.vocab_size));
  const OneSequence sequence(batch);
  const Dtype dtype = model.compute_dtype();
  Buffer x_buffer, k_buffer, v_buffer, logits_buffer;
  const MatrixView x = x_buffer.matrix(dtype, batch.length, c.hidden_size);
  // A sequence is done with a layer before the next one begins: one layer's cache serves all.
  const model::KvLayer kv = model::kv_layer(c, dtype, sequence.cache_rows(), k_buffer, v_buffer);
  const MatrixView logits = logits_buffer.matrix(Dtype::kF32, batch.length, c.vocab_size);
  std::vector<std::vector<int32_t>> expert_ids(static_cast<size_t>(c.num_layers));
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const model::Batch one = sequence.batch(s);
    model.embed(one, x);
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      ACCORD_RETURN_IF_ERROR(
          model.layer_forward(layer, one, kv, x, {&expert_ids[static_cast<size_t>(layer)], {}}, nullptr));
    }
    model.logits(x, sequence.rows(), logits);
    ACCORD_RETURN_IF_ERROR(on_logits(s, logits, expert_ids));
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
