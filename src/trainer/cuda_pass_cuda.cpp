#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "trainer/cuda_head_parts.hpp"
#include "trainer/cuda_pass.hpp"

namespace accord::trainer {

namespace cuda = kernels::cuda;

namespace {

constexpr size_t kAlignWords = 64;  // of 4 bytes, between arrays that travel together

// Arrays of 4-byte words that go to the device in one copy.
class WordBlock {
 public:
  template <class T>
  size_t add(std::span<const T> values) {
    static_assert(sizeof(T) % sizeof(int32_t) == 0);
    const size_t at = words_.size();
    words_.resize(at + values.size_bytes() / sizeof(int32_t));
    if (!values.empty()) std::memcpy(words_.data() + at, values.data(), values.size_bytes());
    words_.resize((words_.size() + kAlignWords - 1) / kAlignWords * kAlignWords);
    return at;
  }
  std::span<const int32_t> words() const { return words_; }

 private:
  std::vector<int32_t> words_;
};

struct HostTokenRows {
  std::vector<int32_t> tokens, offsets, rows;
};

HostTokenRows rows_by_token(std::span<const int32_t> tokens) {
  HostTokenRows out;
  out.rows.resize(tokens.size());
  std::iota(out.rows.begin(), out.rows.end(), 0);
  const auto token_of = [&](int32_t row) { return tokens[static_cast<size_t>(row)]; };
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [&](int32_t a, int32_t b) { return token_of(a) < token_of(b); });
  for (size_t i = 0; i < out.rows.size(); ++i) {
    const int32_t token = token_of(out.rows[i]);
    if (!out.tokens.empty() && out.tokens.back() == token) continue;
    out.tokens.push_back(token);
    out.offsets.push_back(static_cast<int32_t>(i));
  }
  out.offsets.push_back(static_cast<int32_t>(out.rows.size()));
  return out;
}

}  // namespace

CudaPass::CudaPass(const CudaContext& context, model::CudaModel& model, int64_t activation_bytes,
                   ThreadPool& pool)
    : c_(context),
      model_(model),
      activation_bytes_(activation_bytes),
      pool_(pool),
      moe_slots_(moe_slots(context.config)),
      scratch_(context.device, kHeadParts) {
  inputs_.resize(static_cast<size_t>(c_.config.num_layers) + 1);
  slots_.resize(1);
  router_biases_.resize(static_cast<size_t>(c_.config.num_layers));
}

StatusOr<std::unique_ptr<CudaPass>> CudaPass::create(const CudaContext& context, model::CudaModel& model,
                                                     int64_t activation_bytes, ThreadPool& pool) {
  std::unique_ptr<CudaPass> pass(new CudaPass(context, model, activation_bytes, pool));
  ACCORD_ASSIGN_OR_RETURN(pass->layer_backward_, CudaLayerBackward::create(context, model));
  return pass;
}

MatrixView CudaPass::input_of(int64_t layer) const {
  return inputs_[static_cast<size_t>(layer)].matrix(Dtype::kBF16, rows(), c_.config.hidden_size);
}

Status CudaPass::copy_input(int64_t layer) {
  const MatrixView from = input_of(layer);
  return c_.stream.copy(input_of(layer + 1).data, from.data,
                        static_cast<size_t>(from.rows * from.cols) * sizeof(BF16));
}

Status CudaPass::upload(const PackedBatch& packed, std::span<const float> temperatures,
                        const PassRouting& routing) {
  std::vector<float> per_token;
  for (const int32_t sequence : packed.response_sequences()) {
    per_token.push_back(temperatures[static_cast<size_t>(sequence)]);
  }
  const model::Batch batch = packed.batch();
  const HostTokenRows by_token = rows_by_token(batch.tokens);
  const std::vector<cuda::AttentionBackwardTile> tiles = attention_backward_tiles(batch);
  WordBlock block;
  const size_t response_rows = block.add(packed.response_rows());
  const size_t response_tokens = block.add(packed.response_tokens());
  const size_t token_temperatures = block.add(std::span<const float>(per_token));
  const size_t tokens = block.add(std::span<const int32_t>(by_token.tokens));
  const size_t offsets = block.add(std::span<const int32_t>(by_token.offsets));
  const size_t rows = block.add(std::span<const int32_t>(by_token.rows));
  const size_t attention = block.add(std::span<const cuda::AttentionBackwardTile>(tiles));
  const size_t replay = block.add(routing.replay);

  const size_t bytes = block.words().size_bytes();
  ACCORD_RETURN_IF_ERROR(c_.stream.synchronize());  // the last micro-batch has read what it sent
  ACCORD_RETURN_IF_ERROR(staging_.ensure(c_.device, bytes, MemoryKind::kPinned));
  ACCORD_RETURN_IF_ERROR(uploaded_.ensure(c_.device, bytes));
  std::memcpy(staging_.data(), block.words().data(), bytes);
  ACCORD_RETURN_IF_ERROR(c_.stream.copy(uploaded_.data(), staging_.data(), bytes));

  const int32_t* const words = uploaded_.as<int32_t>();
  in_.response_rows = words + response_rows;
  in_.response_tokens = words + response_tokens;
  in_.temperatures = reinterpret_cast<const float*>(words + token_temperatures);
  in_.token_rows = {words + tokens, words + offsets, words + rows,
                    static_cast<int32_t>(by_token.tokens.size())};
  in_.attention = {reinterpret_cast<const cuda::AttentionBackwardTile*>(words + attention),
                   static_cast<int32_t>(tiles.size())};
  in_.replay = routing.replay.empty() ? nullptr : words + replay;
  return model_.set_batch(batch);
}

int64_t CudaPass::slot_bytes(int64_t layer) const {
  const KvWidths kv = kv_widths(c_.config);
  return model::CudaLayerTape::bytes(c_.config, layer, rows()) +
         rows() * (kv.k + kv.v) * static_cast<int64_t>(sizeof(BF16));
}

Status CudaPass::reserve(Slot& slot, int64_t layer, bool with_tape) {
  const KvWidths kv = kv_widths(c_.config);
  ACCORD_RETURN_IF_ERROR(slot.k.ensure_matrix(c_.device, Dtype::kBF16, rows(), kv.k));
  ACCORD_RETURN_IF_ERROR(slot.v.ensure_matrix(c_.device, Dtype::kBF16, rows(), kv.v));
  if (!with_tape) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(slot.tape.reserve(c_.device, c_.config, layer, rows()));
  slot.bytes = std::max(slot.bytes, slot_bytes(layer));
  return absl::OkStatus();
}

Status CudaPass::observe_router(int64_t layer, const PassRouting& routing, const model::CudaLayerTape& tape) {
  const int64_t experts = c_.config.num_experts;
  const float* const bias = model_.weights().layers[static_cast<size_t>(layer)].router_bias;
  std::vector<float>& host_bias = router_biases_[static_cast<size_t>(layer)];
  if (bias != nullptr) {  // read each time: the arena may have changed
    host_bias.resize(static_cast<size_t>(experts));
    ACCORD_RETURN_IF_ERROR(c_.stream.copy(host_bias.data(), bias, host_bias.size() * sizeof(float)));
  }
  observed_.resize(static_cast<size_t>(rows() * experts));
  ACCORD_RETURN_IF_ERROR(
      c_.stream.copy(observed_.data(), tape.router_probs.data(), observed_.size() * sizeof(float)));
  ACCORD_RETURN_IF_ERROR(c_.stream.synchronize());
  routing.observe(layer, observed_.data(), bias != nullptr ? host_bias.data() : nullptr);
  return absl::OkStatus();
}

Status CudaPass::run_layer(int64_t layer, MatrixView x, const PassRouting& routing, bool observe, Slot& slot,
                           bool with_tape) {
  const model::KvLayer kv = model::kv_layer(c_.config, Dtype::kBF16, rows(), slot.k.data(), slot.v.data());
  const int64_t moe_slot = moe_slots_[static_cast<size_t>(layer)];
  model::CudaRouting layer_routing;
  if (in_.replay != nullptr && moe_slot >= 0) {
    layer_routing.replay = in_.replay + moe_slot * rows() * c_.config.num_experts_per_token;
  }
  model_.layer_forward(layer, kv, x, layer_routing, with_tape ? &slot.tape : nullptr);
  if (observe && moe_slot >= 0) return observe_router(layer, routing, slot.tape);
  return absl::OkStatus();
}

Status CudaPass::run_layers(const PackedBatch& packed, const PassRouting& routing, bool keep) {
  const int64_t layers = c_.config.num_layers;
  const bool observe = static_cast<bool>(routing.observe);
  for (DeviceBuffer& buffer : inputs_) {
    ACCORD_RETURN_IF_ERROR(
        buffer.ensure_matrix(c_.device, Dtype::kBF16, packed.num_rows(), c_.config.hidden_size));
  }
  model_.embed(input_of(0));
  slot_of_layer_.assign(static_cast<size_t>(layers), 0);
  size_t kept = 0;
  int64_t left = activation_bytes_;
  for (int64_t layer = 0; layer < layers; ++layer) {
    ACCORD_RETURN_IF_ERROR(copy_input(layer));
    left -= slot_bytes(layer);
    keep = keep && left >= 0;
    if (keep) {
      if (slots_.size() <= kept + 1) slots_.resize(kept + 2);
      // Where the device turns out to be full, this layer and the next ones are recomputed.
      keep = reserve(slots_[kept + 1], layer, true).ok();
      if (!keep) slots_[kept + 1] = Slot();
    }
    Slot& slot = slots_[keep ? kept + 1 : 0];
    const bool with_tape = keep || observe;
    if (!keep) ACCORD_RETURN_IF_ERROR(reserve(slot, layer, with_tape));
    ACCORD_RETURN_IF_ERROR(run_layer(layer, input_of(layer + 1), routing, observe, slot, with_tape));
    if (keep) slot_of_layer_[static_cast<size_t>(layer)] = ++kept;
  }
  return absl::OkStatus();
}

Status CudaPass::forward(const PackedBatch& packed, std::span<const float> temperatures,
                         const PassRouting& routing, const TokenLossFn& visit) {
  if (packed.num_rows() == 0) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(upload(packed, temperatures, routing));
  ACCORD_RETURN_IF_ERROR(run_layers(packed, routing, false));
  return head(packed, visit, false);
}

Status CudaPass::forward_backward(const PackedBatch& packed, std::span<const float> temperatures,
                                  const PassRouting& routing, const TokenLossFn& loss) {
  if (packed.num_rows() == 0) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(upload(packed, temperatures, routing));
  const int64_t hidden = c_.config.hidden_size;
  ACCORD_RETURN_IF_ERROR(dx_.ensure_matrix(c_.device, Dtype::kF32, rows(), hidden));
  ACCORD_RETURN_IF_ERROR(c_.stream.fill(dx_.data(), 0, static_cast<size_t>(rows() * hidden) * sizeof(float)));
  ACCORD_RETURN_IF_ERROR(run_layers(packed, routing, true));
  ACCORD_RETURN_IF_ERROR(head(packed, loss, true));
  return layers_backward(routing);
}

Status CudaPass::layers_backward(const PassRouting& routing) {
  for (int64_t layer = c_.config.num_layers - 1; layer >= 0; --layer) {
    Slot& slot = slots_[slot_of_layer_[static_cast<size_t>(layer)]];
    if (slot_of_layer_[static_cast<size_t>(layer)] == 0) {
      // The next layer's input is no longer needed: its place takes the recomputed output.
      ACCORD_RETURN_IF_ERROR(copy_input(layer));
      ACCORD_RETURN_IF_ERROR(reserve(slot, layer, true));
      ACCORD_RETURN_IF_ERROR(run_layer(layer, input_of(layer + 1), routing, false, slot, true));
    }
    const model::KvLayer kv = model::kv_layer(c_.config, Dtype::kBF16, rows(), slot.k.data(), slot.v.data());
    const Status status =
        layer_backward_->run(layer, in_.attention, input_of(layer), kv, slot.tape, dx_.as<float>());
    if (!status.ok()) return annotate(status, fmt::format("backward of layer {}", layer));
  }
  cuda::embedding_backward(in_.token_rows, dx_.as<float>(), c_.config.hidden_size,
                           c_.parameters.gradient(c_.params.embedding), c_.handle());
  return absl::OkStatus();
}

void CudaPass::add_memory(TrainerMemory& memory) const {
  for (const DeviceBuffer& buffer : inputs_) memory.activations += static_cast<int64_t>(buffer.capacity());
  for (const Slot& slot : slots_) memory.activations += slot.bytes;
  memory.workspace += static_cast<int64_t>(dx_.capacity() + uploaded_.capacity()) + scratch_.bytes() +
                      layer_backward_->bytes();
}

}  // namespace accord::trainer
