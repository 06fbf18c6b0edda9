// The sizes of a layer's tape on the device.
#include <utility>
#include <vector>

#include "kernels/gemm/gemm_cuda.hpp"
#include "model/cuda_model.hpp"

namespace accord::model {
namespace {

namespace cuda = kernels::cuda;

using Part = std::pair<DeviceBuffer*, int64_t>;  // and its bytes

void add_latent(const ModelConfig& c, int64_t rows, CudaMlaTape& t, std::vector<Part>& parts) {
  const MlaConfig& mla = c.mla;
  const auto bf16 = [&](DeviceBuffer& b, int64_t width) { parts.emplace_back(&b, 2 * rows * width); };
  const auto fp32 = [&](DeviceBuffer& b, int64_t width) { parts.emplace_back(&b, 4 * rows * width); };
  if (mla.q_lora_rank > 0) {
    bf16(t.q_a, mla.q_lora_rank);
    bf16(t.q_a_norm, mla.q_lora_rank);
    fp32(t.inv_rms_q_a, 1);
  }
  bf16(t.kv_a, mla.kv_lora_rank + mla.qk_rope_head_dim);
  bf16(t.latent, mla.kv_lora_rank);
  fp32(t.inv_rms_kv_a, 1);
  if (c.absorbed()) {
    bf16(t.q_latent, c.num_heads * (mla.kv_lora_rank + mla.qk_rope_head_dim));
    bf16(t.attn_latent, c.num_heads * mla.kv_lora_rank);
  }
}

void add_experts(const ModelConfig& c, int64_t rows, CudaLayerTape& t, std::vector<Part>& parts) {
  const int64_t sorted = rows * c.num_experts_per_token;
  const auto words = [&](DeviceBuffer& b, int64_t count) { parts.emplace_back(&b, 4 * count); };
  for (DeviceBuffer* b : {&t.gate, &t.up, &t.act})
    parts.emplace_back(b, 2 * sorted * c.moe_intermediate_size);
  parts.emplace_back(&t.down, 2 * sorted * c.hidden_size);
  words(t.router_probs, rows * c.num_experts);
  words(t.topk_weights, sorted);
  words(t.topk_ids, sorted);
  words(t.expert_offsets, c.num_experts + 1);
  words(t.sorted_tokens, sorted);
  words(t.sorted_slots, sorted);
  words(t.slot_rows, sorted);
  const int32_t tile_rows = cuda::group_tile_rows(sorted, c.num_experts);
  parts.emplace_back(&t.group_tiles, cuda::group_list_size(sorted, c.num_experts, tile_rows) *
                                         static_cast<int64_t>(sizeof(cuda::GroupTile)));
  words(t.num_group_tiles, 1);
  if (c.num_shared_experts > 0) {
    for (DeviceBuffer* b : {&t.shared_gate, &t.shared_up, &t.shared_act}) {
      parts.emplace_back(b, 2 * rows * c.shared_width());
    }
  }
}

std::vector<Part> parts_of(const ModelConfig& c, int64_t layer, int64_t rows, CudaLayerTape& t) {
  std::vector<Part> parts;
  const auto bf16 = [&](DeviceBuffer& b, int64_t width) { parts.emplace_back(&b, 2 * rows * width); };
  const auto fp32 = [&](DeviceBuffer& b, int64_t width) { parts.emplace_back(&b, 4 * rows * width); };
  bf16(t.norm1, c.hidden_size);
  fp32(t.inv_rms1, 1);
  bf16(t.q, c.q_width());
  bf16(t.attn, c.attention_width());
  fp32(t.lse, c.num_heads);
  bf16(t.x_mid, c.hidden_size);
  bf16(t.norm2, c.hidden_size);
  fp32(t.inv_rms2, 1);
  if (c.has_mla()) {
    add_latent(c, rows, t.mla, parts);
  } else {
    bf16(t.q_raw, c.q_width());
    bf16(t.k_raw, c.num_kv_heads * c.head_dim);
    if (c.qk_norm) {
      fp32(t.inv_rms_q, c.num_heads);
      fp32(t.inv_rms_k, c.num_kv_heads);
    }
  }
  if (c.layer_is_moe[static_cast<size_t>(layer)]) {
    add_experts(c, rows, t, parts);
  } else {
    for (DeviceBuffer* b : {&t.gate, &t.up, &t.act}) bf16(*b, c.intermediate_size);
  }
  return parts;
}

}  // namespace

Status CudaLayerTape::reserve(const Device& device, const ModelConfig& config, int64_t layer, int64_t rows) {
  for (const auto& [buffer, bytes] : parts_of(config, layer, rows, *this)) {
    ACCORD_RETURN_IF_ERROR(buffer->ensure(device, static_cast<size_t>(bytes)));
  }
  return absl::OkStatus();
}

void CudaLayerTape::addresses(std::vector<const void*>& out) const {
  for (const DeviceBuffer* b : {&norm1,
                                &inv_rms1,
                                &q_raw,
                                &k_raw,
                                &inv_rms_q,
                                &inv_rms_k,
                                &q,
                                &attn,
                                &lse,
                                &x_mid,
                                &norm2,
                                &inv_rms2,
                                &mla.q_a,
                                &mla.q_a_norm,
                                &mla.inv_rms_q_a,
                                &mla.kv_a,
                                &mla.latent,
                                &mla.inv_rms_kv_a,
                                &mla.q_latent,
                                &mla.attn_latent,
                                &gate,
                                &up,
                                &act,
                                &down,
                                &router_probs,
                                &topk_weights,
                                &topk_ids,
                                &expert_offsets,
                                &sorted_tokens,
                                &sorted_slots,
                                &slot_rows,
                                &group_tiles,
                                &num_group_tiles,
                                &shared_gate,
                                &shared_up,
                                &shared_act}) {
    b->add_bounds(out);
  }
}

int64_t CudaLayerTape::bytes(const ModelConfig& config, int64_t layer, int64_t rows) {
  CudaLayerTape none;
  int64_t sum = 0;
  for (const auto& [buffer, bytes] : parts_of(config, layer, rows, none)) sum += bytes;
  return sum;
}

}  // namespace accord::model
