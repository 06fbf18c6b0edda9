#pragma once
// The experts that a sample was routed to, as rollout and trainer exchange them:
// [tokens - 1, MoE layers, experts per token], best first. Layers without experts have no row, and neither
// has the last token, which was never an input.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/model_config.hpp"

namespace accord {

// Ids in one byte each while the model has at most 256 experts, else in two, the lower byte first.
struct ExpertIds {
  std::vector<uint8_t> bytes;
  bool empty() const { return bytes.empty(); }
  bool operator==(const ExpertIds&) const = default;
};

int64_t num_moe_layers(const ModelConfig& config);
// Per layer: its place among the MoE layers, or -1.
std::vector<int64_t> moe_slots(const ModelConfig& config);
// Ids per token: MoE layers * experts per token.
int64_t routing_width(const ModelConfig& config);

size_t expert_id_bytes(int64_t num_experts);
// Overwrites the ids from number `begin` on, growing as needed. Every id is in [0, num_experts).
void store_expert_ids(std::span<const int32_t> ids, int64_t num_experts, size_t begin, ExpertIds& out);
ExpertIds pack_expert_ids(std::span<const int32_t> ids, int64_t num_experts);
// Ids [begin, begin + out.size()), which are there.
void load_expert_ids(const ExpertIds& packed, int64_t num_experts, size_t begin, std::span<int32_t> out);

}  // namespace accord
