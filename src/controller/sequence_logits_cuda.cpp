#include "controller/sequence_logits.hpp"
#include "device/device_buffer.hpp"
#include "model/cuda_model.hpp"

namespace accord::controller {

Status sequence_logits(const DeviceWeights& weights, const SequenceBatch& batch, const OnLogits& on_logits) {
  const ModelConfig& c = weights.config();
  const Device& device = weights.device();
  const Stream& stream = weights.stream();
  ACCORD_RETURN_IF_ERROR(check_ids(batch, c.vocab_size));
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights bound, weights.bind());
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<model::CudaModel> model,
                          model::CudaModel::create(c, std::move(bound), device, stream));
  ACCORD_RETURN_IF_ERROR(model->check_weights());

  const OneSequence sequence(batch);
  const KvWidths widths = kv_widths(c);
  const int64_t cache_rows = sequence.cache_rows();
  const int64_t layer_ids = batch.length * c.num_experts_per_token;
  DeviceBuffer x_buffer, k, v, logits_buffer, rows, ids;
  ACCORD_RETURN_IF_ERROR(x_buffer.ensure_matrix(device, Dtype::kBF16, batch.length, c.hidden_size));
  ACCORD_RETURN_IF_ERROR(k.ensure_matrix(device, Dtype::kBF16, cache_rows, widths.k));
  ACCORD_RETURN_IF_ERROR(v.ensure_matrix(device, Dtype::kBF16, cache_rows, widths.v));
  ACCORD_RETURN_IF_ERROR(logits_buffer.ensure_matrix(device, Dtype::kF32, batch.length, c.vocab_size));
  ACCORD_RETURN_IF_ERROR(rows.ensure(device, sequence.rows().size_bytes()));
  ACCORD_RETURN_IF_ERROR(ids.ensure(device, static_cast<size_t>(c.num_layers * layer_ids) * sizeof(int32_t)));
  ACCORD_RETURN_IF_ERROR(stream.copy(rows.data(), sequence.rows().data(), sequence.rows().size_bytes()));
  const MatrixView x = x_buffer.matrix(Dtype::kBF16, batch.length, c.hidden_size);
  const MatrixView logits = logits_buffer.matrix(Dtype::kF32, batch.length, c.vocab_size);
  // A sequence is done with a layer before the next one begins: one layer's cache serves all.
  const model::KvLayer kv = model::kv_layer(c, Dtype::kBF16, cache_rows, k.data(), v.data());

  std::vector<float> host_logits(static_cast<size_t>(batch.length * c.vocab_size));
  std::vector<std::vector<int32_t>> expert_ids(static_cast<size_t>(c.num_layers));
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    ACCORD_RETURN_IF_ERROR(model->set_batch(sequence.batch(s)));
    model->embed(x);
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      const auto at = static_cast<size_t>(layer);
      const bool moe = c.layer_is_moe[at];
      int32_t* record = moe ? ids.as<int32_t>() + layer * layer_ids : nullptr;
      model->layer_forward(layer, kv, x, {record, nullptr}, nullptr);
      if (moe) {
        expert_ids[at].resize(static_cast<size_t>(layer_ids));
        ACCORD_RETURN_IF_ERROR(
            stream.copy(expert_ids[at].data(), record, expert_ids[at].size() * sizeof(int32_t)));
      }
    }
    ACCORD_RETURN_IF_ERROR(model->logits(x, rows.as<int32_t>(), batch.length, logits));
    ACCORD_RETURN_IF_ERROR(stream.copy(host_logits.data(), logits.data, host_logits.size() * sizeof(float)));
    ACCORD_RETURN_IF_ERROR(stream.synchronize());
    const MatrixView on_host{host_logits.data(), Dtype::kF32, batch.length, c.vocab_size, c.vocab_size};
    ACCORD_RETURN_IF_ERROR(on_logits(s, on_host, expert_ids));
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
