#include "trainer/shards.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace accord::trainer {

namespace {

int64_t padded(int64_t elements, int64_t alignment) {
  return (elements + alignment - 1) / alignment * alignment;
}

struct Unit {
  std::vector<int64_t> parameters;
  int64_t elements = 0;
  int32_t home = -1;
};

// In canonical order of their first parameter.
StatusOr<std::vector<Unit>> collect_units(std::span<const ParamSpec> specs,
                                          std::span<const std::string> names,
                                          std::span<const int32_t> homes) {
  std::vector<Unit> units;
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < specs.size(); ++i) {
    size_t unit = units.size();
    if (!names.empty() && !names[i].empty()) unit = by_name.emplace(names[i], unit).first->second;
    if (unit == units.size()) units.push_back({{}, 0, homes[i]});
    if (units[unit].home != homes[i]) {
      return internal_error("{}: its quantization unit {} is spread over expert places", specs[i].name,
                            names[i]);
    }
    units[unit].parameters.push_back(static_cast<int64_t>(i));
    units[unit].elements += specs[i].numel();
  }
  return units;
}

}  // namespace

StatusOr<Shards> Shards::create(const ModelConfig& config, const ShardOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return internal_error("trainer: rank {} of {} does not exist", options.rank, options.size);
  }
  const int32_t places = options.expert_parallel;
  if (places < 1 || options.size % places != 0) {
    return recipe_error("trainer.expert_parallel is {}, must divide trainer.workers = {}", places,
                        options.size);
  }
  if (places > 1 && (config.num_experts == 0 || config.num_experts % places != 0)) {
    return recipe_error("trainer.expert_parallel is {}, must divide the model's {} experts", places,
                        config.num_experts);
  }
  const std::vector<ParamSpec> specs = parameter_specs(config);
  if (!options.units.empty() && options.units.size() != specs.size()) {
    return internal_error("trainer: {} unit names for {} parameters", options.units.size(), specs.size());
  }
  Shards shards;
  shards.rank_ = options.rank;
  shards.size_ = options.size;
  shards.expert_parallel_ = places;
  if (options.size == 1) return shards;
  for (const ParamSpec& spec : specs) {
    const bool shared = places == 1 || spec.expert < 0;
    shards.homes_.push_back(shared ? -1 : static_cast<int32_t>(spec.expert / (config.num_experts / places)));
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Unit> units, collect_units(specs, options.units, shards.homes_));
  std::vector<size_t> order(units.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return units[a].elements > units[b].elements; });
  shards.owners_.resize(specs.size());
  std::vector<int64_t> load(static_cast<size_t>(options.size));
  for (size_t u : order) {
    const Unit& unit = units[u];
    int32_t best = unit.home < 0 ? 0 : unit.home;
    for (int32_t r = best; r < options.size; r += unit.home < 0 ? 1 : places) {
      if (load[static_cast<size_t>(r)] < load[static_cast<size_t>(best)]) best = r;
    }
    load[static_cast<size_t>(best)] += unit.elements;
    for (int64_t i : unit.parameters) shards.owners_[static_cast<size_t>(i)] = best;
  }
  return shards;
}

ShardLayout::ShardLayout(const Shards& shards, std::span<const ParamSpec> specs,
                         const std::function<bool(int64_t)>& chosen, bool with_own, int64_t alignment)
    : places_(shards.expert_parallel()) {
  const size_t size = static_cast<size_t>(shards.size());
  const size_t places = static_cast<size_t>(places_);
  lengths_.resize(size * places);
  in_section_.assign(specs.size(), -1);
  offsets_.assign(specs.size(), -1);
  for (const bool shared : {true, false}) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const int64_t parameter = static_cast<int64_t>(i);
      const int32_t home = shards.home(parameter);
      if ((home < 0) != shared || !chosen(parameter)) continue;
      int64_t* lengths = lengths_.data() + static_cast<size_t>(shards.owner(parameter)) * places;
      in_section_[i] = lengths[static_cast<size_t>(shared ? shards.place(shards.owner(parameter)) : home)];
      for (size_t place = 0; place < places; ++place) {
        if (shared || static_cast<int32_t>(place) == home)
          lengths[place] += padded(specs[i].numel(), alignment);
      }
      if (shards.owns(parameter)) own_.push_back(parameter);
    }
  }
  for (int32_t owner = 0; owner < shards.size(); ++owner) {
    begins_.push_back(total_);
    if (with_own || owner != shards.rank()) total_ += section(owner, shards.rank());
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t parameter = static_cast<int64_t>(i);
    if (in_section_[i] < 0 || !shards.holds(parameter) || (!with_own && shards.owns(parameter))) continue;
    offsets_[i] = begins_[static_cast<size_t>(shards.owner(parameter))] + in_section_[i];
  }
}

int64_t ShardLayout::offset(int64_t parameter) const {
  return offsets_.empty() ? -1 : offsets_[static_cast<size_t>(parameter)];
}

int64_t ShardLayout::section(int32_t owner, int32_t rank) const {
  return lengths_[static_cast<size_t>(owner * places_ + rank % places_)];
}

}  // namespace accord::trainer
