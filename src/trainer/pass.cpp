#include "trainer/pass.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/embedding/embedding_backward.hpp"
#include "kernels/logprob/logprob.hpp"
#include "kernels/logprob/logprob_backward.hpp"

namespace accord::trainer {

namespace {

constexpr int64_t kLogitsElements = int64_t{1} << 24;  // of one chunk of response rows: 64 MiB of fp32
constexpr int64_t kMaxChunkRows = 1024;
constexpr int64_t kMinChunkRows = 16;
constexpr int64_t kEmbeddingColumns = 32;  // per task

// Tape bytes that a row takes at its home, and a row of an expert's MLP where the expert is (a dense MLP's
// row counts like an expert's).
int64_t home_bytes_per_row(const ModelConfig& c, int64_t layer, Dtype dtype) {
  const int64_t moe = c.layer_is_moe[static_cast<size_t>(layer)]
                          ? c.num_experts_per_token * c.hidden_size + 3 * c.shared_width()
                          : 0;
  const KvWidths kv = kv_widths(c);
  int64_t attention = 2 * c.q_width() + c.attention_width() + 2 * kv.k + kv.v;
  if (c.has_mla()) {
    const int64_t latents = 2 * (c.mla.q_lora_rank + c.mla.kv_lora_rank) + c.mla.qk_rope_head_dim;
    const int64_t per_head = c.absorbed() ? 2 * c.mla.kv_lora_rank + c.mla.qk_rope_head_dim : 0;
    attention = c.q_width() + c.attention_width() + kv.k + kv.v + latents + c.num_heads * per_head;
  }
  return (3 * c.hidden_size + attention + moe) * size_of(dtype);
}

int64_t mlp_bytes_per_row(const ModelConfig& c, int64_t layer, Dtype dtype) {
  const bool moe = c.layer_is_moe[static_cast<size_t>(layer)];
  return 3 * (moe ? c.moe_intermediate_size : c.intermediate_size) * size_of(dtype);
}

}  // namespace

Pass::Pass(Workspace& workspace, model::Model& model, int64_t activation_bytes)
    : w_(workspace),
      model_(model),
      activation_bytes_(activation_bytes),
      moe_slots_(moe_slots(workspace.config)),
      layer_backward_(workspace) {
  inputs_.resize(static_cast<size_t>(w_.config.num_layers) + 1);
  slots_.resize(1);
}

MatrixView Pass::input_of(int64_t layer, int64_t rows) const {
  return {inputs_[static_cast<size_t>(layer)].data(), w_.compute_dtype, rows, w_.config.hidden_size,
          w_.config.hidden_size};
}

bool Pass::nothing_to_do(const PackedBatch& packed) const {
  return packed.num_rows() == 0 && model_.expert_exchange() == nullptr;
}

Pass::Slot& Pass::slot_of(int64_t layer) { return slots_[slot_of_layer_[static_cast<size_t>(layer)]]; }

Status Pass::run_layer(int64_t layer, const PackedBatch& packed, MatrixView x, const PassRouting& routing,
                       bool observe, Slot& slot, bool with_tape) {
  const int64_t rows = packed.num_rows();
  const model::KvLayer kv = model::kv_layer(w_.config, w_.compute_dtype, rows, slot.k, slot.v);
  model::Routing layer_routing;
  const int64_t moe_slot = moe_slots_[static_cast<size_t>(layer)];
  if (!routing.replay.empty() && moe_slot >= 0) {
    const size_t size = static_cast<size_t>(rows * w_.config.num_experts_per_token);
    layer_routing.replay = routing.replay.subspan(static_cast<size_t>(moe_slot) * size, size);
  }
  ACCORD_RETURN_IF_ERROR(
      model_.layer_forward(layer, packed.batch(), kv, x, layer_routing, with_tape ? &slot.tape : nullptr));
  if (observe && routing.observe && moe_slot >= 0) {
    routing.observe(layer, slot.tape.router_probs.as<float>(),
                    model_.weights().layers[static_cast<size_t>(layer)].router_bias);
  }
  return absl::OkStatus();
}

Status Pass::run_layers(const PackedBatch& packed, const PassRouting& routing, bool keep) {
  const ModelConfig& c = w_.config;
  const int64_t rows = packed.num_rows();
  const size_t bytes = static_cast<size_t>(rows * c.hidden_size * size_of(w_.compute_dtype));
  const bool observe = static_cast<bool>(routing.observe);
  // All places of an expert group keep the tapes of the same layers: recomputing one exchanges rows again.
  model::ExpertExchange* exchange = model_.expert_exchange();
  int64_t most_rows = rows;
  if (exchange != nullptr && keep) {
    ACCORD_ASSIGN_OR_RETURN(most_rows, exchange->largest(rows));
  }
  for (Buffer& buffer : inputs_) buffer.ensure(bytes);
  model_.embed(packed.batch(), input_of(0, rows));
  slot_of_layer_.assign(static_cast<size_t>(c.num_layers), 0);
  size_t kept = 0;
  int64_t left = activation_bytes_;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const MatrixView x = input_of(layer + 1, rows);
    if (bytes > 0) std::memcpy(x.data, inputs_[static_cast<size_t>(layer)].data(), bytes);
    const bool moe = c.layer_is_moe[static_cast<size_t>(layer)];
    const int64_t mlp_bytes = mlp_bytes_per_row(c, layer, w_.compute_dtype);
    left -= most_rows * home_bytes_per_row(c, layer, w_.compute_dtype);
    if (exchange == nullptr || !moe) left -= most_rows * (moe ? c.num_experts_per_token : 1) * mlp_bytes;
    keep = keep && left >= 0;
    const size_t index = keep ? kept + 1 : 0;
    if (slots_.size() <= index) slots_.resize(index + 1);
    ACCORD_RETURN_IF_ERROR(run_layer(layer, packed, x, routing, observe, slots_[index], keep || observe));
    if (!keep) continue;
    if (exchange != nullptr && moe) {
      const int64_t arrived_bytes = c.hidden_size * size_of(w_.compute_dtype);
      left -= slots_[index].tape.exchange.most_arrived * (mlp_bytes + arrived_bytes);
    }
    // How many rows arrive shows only now; a tape that does not fit makes the slot of recomputed layers.
    keep = left >= 0;
    if (keep) {
      slot_of_layer_[static_cast<size_t>(layer)] = ++kept;
    } else {
      slots_[0] = std::move(slots_[index]);
      slots_[index] = Slot();
    }
  }
  return absl::OkStatus();
}

Status Pass::forward(const PackedBatch& packed, std::span<const float> temperatures,
                     const PassRouting& routing, const TokenLossFn& visit) {
  if (nothing_to_do(packed)) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(run_layers(packed, routing, false));
  return head(packed, temperatures, visit, false);
}

Status Pass::forward_backward(const PackedBatch& packed, std::span<const float> temperatures,
                              const PassRouting& routing, const TokenLossFn& loss) {
  if (nothing_to_do(packed)) return absl::OkStatus();
  const size_t bytes = static_cast<size_t>(packed.num_rows() * w_.config.hidden_size) * sizeof(float);
  dx_.ensure(bytes);
  if (bytes > 0) std::memset(dx_.data(), 0, bytes);
  ACCORD_RETURN_IF_ERROR(run_layers(packed, routing, true));
  ACCORD_RETURN_IF_ERROR(head(packed, temperatures, loss, true));
  return layers_backward(packed, routing);
}

Status Pass::head(const PackedBatch& packed, std::span<const float> temperatures, const TokenLossFn& loss,
                  bool backward) {
  const int64_t vocab = w_.config.vocab_size;
  const int64_t hidden = w_.config.hidden_size;
  const int64_t count = static_cast<int64_t>(packed.response_rows().size());
  const int64_t chunk = std::clamp(kLogitsElements / vocab, kMinChunkRows, kMaxChunkRows);
  const MatrixView x = input_of(w_.config.num_layers, packed.num_rows());
  if (count == 0) return absl::OkStatus();
  const float* head_weight = backward ? w_.weight(w_.lm_head, head_weight_) : nullptr;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t n = std::min(chunk, count - begin);
    const auto rows = packed.response_rows().subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    const MatrixView logits = logits_.matrix(Dtype::kF32, n, vocab);
    MatrixView normed = normed_.matrix(w_.compute_dtype, n, hidden);
    inv_rms_.ensure(static_cast<size_t>(n) * sizeof(float));
    model_.logits(x, rows, logits, &normed, inv_rms_.as<float>());
    w_.pool.parallel_for(n, [&](int64_t i) {
      const size_t token_index = static_cast<size_t>(begin + i);
      const int32_t token = packed.response_tokens()[token_index];
      const float temperature = temperatures[static_cast<size_t>(packed.response_sequences()[token_index])];
      float* row = logits.row<float>(i);
      const kernels::SoftmaxStats stats = kernels::softmax_stats(row, vocab, temperature);
      TokenValue value;
      value.logprob = kernels::token_logprob(stats, row[token], temperature);
      value.entropy = kernels::softmax_entropy(row, vocab, temperature, stats);
      const TokenGradient gradient = loss(begin + i, value);
      if (!backward) return;
      kernels::logprob_backward(row, vocab, temperature, stats, token, value.entropy,
                                static_cast<float>(gradient.dlogprob), static_cast<float>(gradient.dentropy));
    });
    if (backward) {
      ACCORD_RETURN_IF_ERROR(
          head_backward(rows, logits.row<float>(0), normed, inv_rms_.as<float>(), head_weight));
    }
  }
  return absl::OkStatus();
}

Status Pass::head_backward(std::span<const int32_t> rows, float* dlogits, MatrixView normed,
                           const float* inv_rms, const float* head_weight) {
  const int64_t n = normed.rows;
  const int64_t vocab = w_.config.vocab_size;
  const int64_t hidden = w_.config.hidden_size;
  w_.round_gradient(dlogits, n * vocab);
  dnormed_.ensure(static_cast<size_t>(n * hidden) * sizeof(float));
  dx_rows_.ensure(static_cast<size_t>(n * hidden) * sizeof(float));
  products_.add_rows({{dlogits, head_weight, vocab}}, n, hidden, dnormed_.as<float>());
  products_.add_gradient(dlogits, w_.operand(normed, normed_operand_), n, vocab, hidden,
                         w_.parameters.gradient(w_.lm_head).data());
  ACCORD_RETURN_IF_ERROR(products_.run(w_.pool));

  const size_t row_bytes = static_cast<size_t>(hidden * size_of(w_.compute_dtype));
  const MatrixView x_rows = x_rows_.matrix(w_.compute_dtype, n, hidden);
  const std::byte* x = static_cast<const std::byte*>(inputs_.back().data());
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(static_cast<std::byte*>(x_rows.data) + static_cast<size_t>(i) * row_bytes,
                x + static_cast<size_t>(rows[static_cast<size_t>(i)]) * row_bytes, row_bytes);
  }
  float* dx_rows = dx_rows_.as<float>();
  w_.norm_backward(x_rows, inv_rms, model_.weights().final_norm, w_.final_norm, dnormed_.as<float>(), dx_rows,
                   false);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(dx_rows + i * hidden, hidden, dx_.as<float>() + rows[static_cast<size_t>(i)] * hidden);
  }
  return absl::OkStatus();
}

Status Pass::layers_backward(const PackedBatch& packed, const PassRouting& routing) {
  const int64_t rows = packed.num_rows();
  const int64_t layers = w_.config.num_layers;
  const int64_t hidden = w_.config.hidden_size;
  for (int64_t layer = layers - 1; layer >= 0; --layer) {
    Slot& slot = slot_of(layer);
    if (slot_of_layer_[static_cast<size_t>(layer)] == 0) {
      // The next layer's input is no longer needed: its place takes the recomputed output.
      const MatrixView x = input_of(layer + 1, rows);
      const size_t bytes = static_cast<size_t>(rows * hidden * size_of(w_.compute_dtype));
      if (bytes > 0) std::memcpy(x.data, inputs_[static_cast<size_t>(layer)].data(), bytes);
      ACCORD_RETURN_IF_ERROR(run_layer(layer, packed, x, routing, false, slot, true));
    }
    const model::KvLayer kv = model::kv_layer(w_.config, w_.compute_dtype, rows, slot.k, slot.v);
    ACCORD_RETURN_IF_ERROR(
        layer_backward_.run(layer, packed.batch(), model_.weights().layers[static_cast<size_t>(layer)],
                            input_of(layer, rows), kv, slot.tape, dx_.as<float>(), model_.expert_exchange()));
  }
  if (rows == 0) return absl::OkStatus();
  const std::span<float> table = w_.parameters.gradient(w_.embedding);
  w_.pool.parallel_for((hidden + kEmbeddingColumns - 1) / kEmbeddingColumns, [&](int64_t block) {
    const int64_t begin = block * kEmbeddingColumns;
    kernels::embedding_backward(packed.batch().tokens, dx_.as<float>(), hidden, begin,
                                std::min(hidden, begin + kEmbeddingColumns), table.data());
  });
  return absl::OkStatus();
}

}  // namespace accord::trainer
