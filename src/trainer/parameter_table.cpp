#include "trainer/parameter_table.hpp"

#include <utility>

namespace accord::trainer {

StatusOr<ParameterTable> ParameterTable::create(const ModelConfig& config,
                                                std::span<const std::string> no_decay, Shards shards,
                                                int64_t alignment) {
  ParameterTable t;
  t.shards_ = std::move(shards);
  t.alignment_ = alignment;
  t.specs_ = parameter_specs(config);
  for (const ParamSpec& spec : t.specs_) {
    t.by_name_.emplace(spec.name, static_cast<int64_t>(t.decays_.size()));
    t.decays_.push_back(spec.shape.size() > 1);  // norms and biases are vectors
  }
  for (const std::string& name : no_decay) {
    const int64_t index = t.index(name);
    if (index < 0)
      return data_error("trainer: no parameter is named {} (list of weights without decay)", name);
    t.decays_[static_cast<size_t>(index)] = false;
  }
  t.held_ = ShardLayout(
      t.shards_, t.specs_, [](int64_t) { return true; }, true, alignment);
  t.owned_ = ShardLayout(
      t.shards_, t.specs_, [&](int64_t i) { return t.shards_.owns(i); }, true, alignment);
  return t;
}

int64_t ParameterTable::index(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? -1 : it->second;
}

StatusOr<std::vector<const WeightEntry*>> ParameterTable::entries(const WeightManifest& manifest) const {
  std::vector<const WeightEntry*> entries(specs_.size());
  for (const WeightEntry& entry : manifest.entries) {
    const int64_t i = index(entry.name);
    if (i >= 0) entries[static_cast<size_t>(i)] = &entry;
  }
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (entries[i] == nullptr) return internal_error("trainer: the manifest lacks {}", specs_[i].name);
  }
  return entries;
}

StatusOr<ShardLayout> ParameterTable::plan_originals(const WeightManifest& manifest, bool originals) const {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<const WeightEntry*> all, entries(manifest));
  // Every rank chooses alike, whatever it holds.
  return ShardLayout(
      shards_, specs_, [&](int64_t i) { return originals && is_low_precision(*all[static_cast<size_t>(i)]); },
      false, alignment_);
}

bool is_low_precision(const WeightEntry& entry) {
  return entry.format != WeightFormat::kBF16 && entry.format != WeightFormat::kF32;
}

}  // namespace accord::trainer
