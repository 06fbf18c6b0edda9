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

int64_t tape_bytes_per_row(const ModelConfig& c, int64_t layer, Dtype dtype) {
  const int64_t q_width = c.num_heads * c.head_dim;
  const int64_t c_width = c.num_kv_heads * c.head_dim;
  const int64_t mlp = c.layer_is_moe[static_cast<size_t>(layer)]
                          ? c.num_experts_per_token * (3 * c.moe_intermediate_size + c.hidden_size)
                          : 3 * c.intermediate_size;
  return (3 * c.hidden_size + 3 * q_width + 3 * c_width + mlp) * size_of(dtype);
}

}  // namespace

Pass::Pass(Workspace& workspace, model::Model& model, int64_t activation_bytes)
    : w_(workspace), model_(model), activation_bytes_(activation_bytes), layer_backward_(workspace) {
  inputs_.resize(static_cast<size_t>(w_.config.num_layers) + 1);
}

MatrixView Pass::input_of(int64_t layer, int64_t rows) const {
  return {inputs_[static_cast<size_t>(layer)].data(), w_.compute_dtype, rows, w_.config.hidden_size,
          w_.config.hidden_size};
}

int64_t Pass::kept_layers(int64_t rows) const {
  int64_t left = activation_bytes_;
  int64_t kept = 0;
  for (int64_t layer = w_.config.num_layers - 1; layer >= 0; --layer, ++kept) {
    left -= rows * tape_bytes_per_row(w_.config, layer, w_.compute_dtype);
    if (left < 0) break;
  }
  return kept;
}

Pass::Slot& Pass::slot_of(int64_t layer, int64_t rows) {
  // The last layers have slots of their own: the backward meets them first.
  const int64_t index = std::max<int64_t>(layer - (w_.config.num_layers - kept_layers(rows)) + 1, 0);
  if (slots_.size() <= static_cast<size_t>(index)) slots_.resize(static_cast<size_t>(index) + 1);
  return slots_[static_cast<size_t>(index)];
}

void Pass::run_layer(int64_t layer, const PackedBatch& packed, MatrixView x, const PassRouting& routing,
                     bool observe, Slot& slot, bool with_tape) {
  const int64_t rows = packed.num_rows();
  const int64_t c_width = w_.config.num_kv_heads * w_.config.head_dim;
  const model::KvLayer kv{slot.k.matrix(w_.compute_dtype, rows, c_width),
                          slot.v.matrix(w_.compute_dtype, rows, c_width)};
  model::Routing layer_routing;
  if (!routing.replay.empty()) {
    const size_t size = static_cast<size_t>(rows * w_.config.num_experts_per_token);
    layer_routing.replay = routing.replay.subspan(static_cast<size_t>(layer) * size, size);
  }
  model_.layer_forward(layer, packed.batch(), kv, x, layer_routing, with_tape ? &slot.tape : nullptr);
  if (observe && routing.observe && w_.config.layer_is_moe[static_cast<size_t>(layer)]) {
    routing.observe(layer, slot.tape.router_probs.as<float>());
  }
}

void Pass::run_layers(const PackedBatch& packed, const PassRouting& routing, bool keep) {
  const int64_t rows = packed.num_rows();
  const int64_t layers = w_.config.num_layers;
  const int64_t first_kept = layers - kept_layers(rows);
  const size_t bytes = static_cast<size_t>(rows * w_.config.hidden_size * size_of(w_.compute_dtype));
  for (Buffer& buffer : inputs_) buffer.ensure(bytes);
  model_.embed(packed.batch(), input_of(0, rows));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const MatrixView x = input_of(layer + 1, rows);
    std::memcpy(x.data, inputs_[static_cast<size_t>(layer)].data(), bytes);
    const bool observe = static_cast<bool>(routing.observe);
    run_layer(layer, packed, x, routing, observe, slot_of(layer, rows),
              (keep && layer >= first_kept) || observe);
  }
}

Status Pass::forward(const PackedBatch& packed, std::span<const float> temperatures,
                     const PassRouting& routing, const TokenLossFn& visit) {
  run_layers(packed, routing, false);
  return head(packed, temperatures, visit, false);
}

Status Pass::forward_backward(const PackedBatch& packed, std::span<const float> temperatures,
                              const PassRouting& routing, const TokenLossFn& loss) {
  const size_t bytes = static_cast<size_t>(packed.num_rows() * w_.config.hidden_size) * sizeof(float);
  dx_.ensure(bytes);
  std::memset(dx_.data(), 0, bytes);
  run_layers(packed, routing, true);
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
  const int64_t c_width = w_.config.num_kv_heads * w_.config.head_dim;
  const int64_t first_kept = layers - kept_layers(rows);
  for (int64_t layer = layers - 1; layer >= 0; --layer) {
    Slot& slot = slot_of(layer, rows);
    if (layer < first_kept) {
      // The next layer's input is no longer needed: its place takes the recomputed output.
      const MatrixView x = input_of(layer + 1, rows);
      std::memcpy(x.data, inputs_[static_cast<size_t>(layer)].data(),
                  static_cast<size_t>(rows * hidden * size_of(w_.compute_dtype)));
      run_layer(layer, packed, x, routing, false, slot, true);
    }
    const model::KvLayer kv{slot.k.matrix(w_.compute_dtype, rows, c_width),
                            slot.v.matrix(w_.compute_dtype, rows, c_width)};
    ACCORD_RETURN_IF_ERROR(layer_backward_.run(layer, packed.batch(),
                                               model_.weights().layers[static_cast<size_t>(layer)],
                                               input_of(layer, rows), kv, slot.tape, dx_.as<float>()));
  }
  const std::span<float> table = w_.parameters.gradient(w_.embedding);
  w_.pool.parallel_for((hidden + kEmbeddingColumns - 1) / kEmbeddingColumns, [&](int64_t block) {
    const int64_t begin = block * kEmbeddingColumns;
    kernels::embedding_backward(packed.batch().tokens, dx_.as<float>(), hidden, begin,
                                std::min(hidden, begin + kEmbeddingColumns), table.data());
  });
  return absl::OkStatus();
}

}  // namespace accord::trainer
