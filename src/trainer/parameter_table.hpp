#pragma once
// The parameters of a policy as one rank sees them, wherever their values lie: names, shapes, decay, and
// where each starts in the flat arrays of gradients (of tensors that the rank holds), and of masters and
// moments (of those that it owns; shards.hpp). A single rank has everything, in canonical order.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "trainer/shards.hpp"

namespace accord::trainer {

class ParameterTable {
 public:
  ParameterTable() = default;
  // `no_decay` names weights besides the norms that do not decay. An unknown name is an error. Tensors start
  // at multiples of `alignment` elements.
  static StatusOr<ParameterTable> create(const ModelConfig& config, std::span<const std::string> no_decay,
                                         Shards shards, int64_t alignment = ShardLayout::kAlignment);

  const Shards& shards() const { return shards_; }
  std::span<const ParamSpec> specs() const { return specs_; }
  const ParamSpec& spec(int64_t index) const { return specs_[static_cast<size_t>(index)]; }
  int64_t count() const { return static_cast<int64_t>(specs_.size()); }
  int64_t index(std::string_view name) const;  // -1: unknown
  bool decays(int64_t index) const { return decays_[static_cast<size_t>(index)]; }

  const ShardLayout& held() const { return held_; }
  const ShardLayout& owned() const { return owned_; }
  // Of the BF16 copies of bf16(master) that ranks without the master need: weights that the manifest keeps in
  // low precision, where the backward asks for their `originals`.
  StatusOr<ShardLayout> plan_originals(const WeightManifest& manifest, bool originals) const;
  // Per parameter its entry. Errors (kInternal): the manifest lacks one.
  StatusOr<std::vector<const WeightEntry*>> entries(const WeightManifest& manifest) const;

 private:
  Shards shards_;
  int64_t alignment_ = ShardLayout::kAlignment;
  std::vector<ParamSpec> specs_;
  std::vector<bool> decays_;
  std::unordered_map<std::string, int64_t> by_name_;
  ShardLayout held_, owned_;
};

// Whether a weight's bytes in the arena are not bf16(master) itself.
bool is_low_precision(const WeightEntry& entry);

}  // namespace accord::trainer
