#include "base/expert_ids.hpp"

#include <algorithm>

namespace accord {
namespace {

constexpr int64_t kOneByte = 256;

}  // namespace

int64_t num_moe_layers(const ModelConfig& config) {
  return std::count(config.layer_is_moe.begin(), config.layer_is_moe.end(), true);
}

std::vector<int64_t> moe_slots(const ModelConfig& config) {
  std::vector<int64_t> slots;
  int64_t next = 0;
  for (const bool moe : config.layer_is_moe) {
    slots.push_back(moe ? next++ : -1);
  }
  return slots;
}

int64_t routing_width(const ModelConfig& config) {
  return num_moe_layers(config) * config.num_experts_per_token;
}

size_t expert_id_bytes(int64_t num_experts) { return num_experts <= kOneByte ? 1 : 2; }

void store_expert_ids(std::span<const int32_t> ids, int64_t num_experts, size_t begin, ExpertIds& out) {
  const size_t width = expert_id_bytes(num_experts);
  out.bytes.resize(std::max(out.bytes.size(), (begin + ids.size()) * width));
  uint8_t* to = out.bytes.data() + begin * width;
  for (const int32_t id : ids) {
    *to++ = static_cast<uint8_t>(id);
    if (width == 2) {
      *to++ = static_cast<uint8_t>(id >> 8);
    }
  }
}

ExpertIds pack_expert_ids(std::span<const int32_t> ids, int64_t num_experts) {
  ExpertIds packed;
  store_expert_ids(ids, num_experts, 0, packed);
  return packed;
}

void load_expert_ids(const ExpertIds& packed, int64_t num_experts, size_t begin, std::span<int32_t> out) {
  const size_t width = expert_id_bytes(num_experts);
  const uint8_t* from = packed.bytes.data() + begin * width;
  for (int32_t& id : out) {
    id = *from++;
    if (width == 2) {
      id |= *from++ << 8;
    }
  }
}

}  // namespace accord
