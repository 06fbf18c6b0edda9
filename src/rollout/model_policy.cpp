// The policy over model::Model: owns the KV cache and the residual stream.
#include <cstring>

#include "device/buffer.hpp"
#include "rollout/host_drawer.hpp"
#include "rollout/policy.hpp"

namespace accord::rollout {
namespace {

class ModelPolicy final : public HostPolicy {
 public:
  ModelPolicy(model::Model& model, ThreadPool& pool) : model_(model), drawer_(pool) {
    const ModelConfig& config = model.config();
    widths_ = kv_widths(config);
    moe_slot_ = moe_slots(config);
  }

  int64_t vocab_size() const override { return model_.config().vocab_size; }
  int64_t max_positions() const override { return model_.config().max_position_embeddings; }
  int64_t routing_width() const override { return accord::routing_width(model_.config()); }
  int64_t num_experts() const override { return model_.config().num_experts; }
  int64_t cache_row_bytes() const override {
    return kv_row_bytes(model_.config(), size_of(model_.compute_dtype()));
  }

  Status reserve(int64_t cache_rows, int64_t max_batch_rows) override {
    const int64_t layer_bytes = cache_rows * (row_bytes(widths_.k) + row_bytes(widths_.v));
    cache_bytes_ = static_cast<size_t>(model_.config().num_layers * layer_bytes);
    cache_.ensure(cache_bytes_);
    std::byte* base = cache_.as<std::byte>();
    const Dtype dtype = model_.compute_dtype();
    for (int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
      std::byte* k = base + layer * layer_bytes;
      kv_.push_back(
          model::kv_layer(model_.config(), dtype, cache_rows, k, k + cache_rows * row_bytes(widths_.k)));
    }
    x_.matrix(dtype, max_batch_rows, model_.config().hidden_size);
    drawer_.reserve(vocab_size(), max_batch_rows);
    return absl::OkStatus();
  }

  std::span<std::byte> cache_memory() override { return {cache_.as<std::byte>(), cache_bytes_}; }

  void copy_rows(int32_t from, int32_t to, int32_t count) override {
    const auto copy = [&](const MatrixView& m, int64_t bytes) {
      std::byte* base = static_cast<std::byte*>(m.data);
      std::memcpy(base + to * bytes, base + from * bytes, static_cast<size_t>(count * bytes));
    };
    for (const model::KvLayer& layer : kv_) {
      copy(layer.k, row_bytes(widths_.k));
      if (widths_.v > 0) {  // else the values are part of the keys
        copy(layer.v, row_bytes(widths_.v));
      }
    }
  }

 protected:
  Status forward(const model::Batch& batch, std::vector<int32_t>* routing) override {
    x_TH_ = x_.matrix(model_.compute_dtype(), batch.num_rows(), model_.config().hidden_size);
    if (routing != nullptr) {
      routing->resize(static_cast<size_t>(batch.num_rows() * routing_width()));
    }
    model_.embed(batch, x_TH_);
    for (int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
      const int64_t slot = moe_slot_[static_cast<size_t>(layer)];
      const bool record = routing != nullptr && slot >= 0;
      ACCORD_RETURN_IF_ERROR(model_.layer_forward(layer, batch, kv_[static_cast<size_t>(layer)], x_TH_,
                                                  {.record = record ? &layer_ids_ : nullptr, .replay = {}},
                                                  nullptr));
      if (record) {
        scatter(slot, batch.num_rows(), *routing);
      }
    }
    return absl::OkStatus();
  }

  Status draw(std::span<const DrawTask> tasks, std::span<StatusOr<DrawnToken>> drawn,
              double& sampling_seconds) override {
    const auto logits = [this](std::span<const int32_t> rows, MatrixView logits_RV) {
      model_.logits(x_TH_, rows, logits_RV);
    };
    drawer_.draw(tasks, logits, drawn, sampling_seconds);
    return absl::OkStatus();
  }

 private:
  int64_t row_bytes(int64_t width) const { return width * size_of(model_.compute_dtype()); }

  // layer_ids_ [T, K] -> routing[:, slot, :]
  void scatter(int64_t slot, int64_t num_rows, std::vector<int32_t>& routing) const {
    const int64_t top_k = model_.config().num_experts_per_token;
    const size_t bytes = static_cast<size_t>(top_k) * sizeof(int32_t);
    for (int64_t t = 0; t < num_rows; ++t) {
      std::memcpy(routing.data() + t * routing_width() + slot * top_k, layer_ids_.data() + t * top_k, bytes);
    }
  }

  model::Model& model_;
  HostDrawer drawer_;
  KvWidths widths_;
  std::vector<int64_t> moe_slot_;  // per layer: its place among the MoE layers, or -1
  Buffer cache_;
  size_t cache_bytes_ = 0;
  std::vector<model::KvLayer> kv_;
  Buffer x_;
  MatrixView x_TH_;
  std::vector<int32_t> layer_ids_;
};

}  // namespace

std::unique_ptr<Policy> make_model_policy(model::Model& model, ThreadPool& pool) {
  return std::make_unique<ModelPolicy>(model, pool);
}

}  // namespace accord::rollout
