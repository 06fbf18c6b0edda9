#include "trainer/parameters.hpp"

#include <cstring>
#include <utility>

#include "kernels/linear/linear_backward.hpp"

namespace accord::trainer {

namespace {

void allocate_zero(Buffer& buffer, int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  buffer.ensure(bytes);
  if (bytes > 0) std::memset(buffer.data(), 0, bytes);
}

}  // namespace

StatusOr<Parameters> Parameters::create(const ModelConfig& config, std::span<const std::string> no_decay,
                                        Shards shards) {
  Parameters p;
  p.shards_ = std::move(shards);
  p.specs_ = parameter_specs(config);
  for (const ParamSpec& spec : p.specs_) {
    p.by_name_.emplace(spec.name, static_cast<int64_t>(p.decays_.size()));
    p.decays_.push_back(spec.shape.size() > 1);  // norms and biases are vectors
  }
  for (const std::string& name : no_decay) {
    const int64_t index = p.index(name);
    if (index < 0)
      return data_error("trainer: no parameter is named {} (list of weights without decay)", name);
    p.decays_[static_cast<size_t>(index)] = false;
  }
  p.held_ = ShardLayout(
      p.shards_, p.specs_, [](int64_t) { return true; }, true);
  p.owned_ = ShardLayout(
      p.shards_, p.specs_, [&](int64_t i) { return p.shards_.owns(i); }, true);
  allocate_zero(p.gradients_, p.held_.total());
  for (Buffer* buffer : {&p.masters_, &p.exp_avg_, &p.exp_avg_sq_}) allocate_zero(*buffer, p.owned_.total());
  p.bits_.resize(p.specs_.size());
  return p;
}

int64_t Parameters::index(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? -1 : it->second;
}

std::span<float> Parameters::view(const Buffer& buffer, const ShardLayout& layout, int64_t index) const {
  const int64_t offset = layout.offset(index);
  if (offset < 0) return {};
  return {buffer.as<float>() + offset, static_cast<size_t>(specs_[static_cast<size_t>(index)].numel())};
}

std::span<float> Parameters::owned_gradients() const {
  const int32_t rank = shards_.rank();
  return {gradients_.as<float>() + held_.section_begin(rank), static_cast<size_t>(held_.section(rank, rank))};
}

void Parameters::clear_gradients() { allocate_zero(gradients_, held_.total()); }

void Parameters::clear_moments() {
  for (Buffer* buffer : {&exp_avg_, &exp_avg_sq_}) allocate_zero(*buffer, owned_.total());
}

Status Parameters::bind(const WeightManifest& manifest, const void* arena, bool originals) {
  if (shards_.size() == 1) return absl::OkStatus();
  std::vector<const WeightEntry*> entries(specs_.size());
  for (const WeightEntry& entry : manifest.entries) {
    const int64_t i = index(entry.name);
    if (i >= 0) entries[static_cast<size_t>(i)] = &entry;
  }
  // Every rank must choose alike, whatever it holds.
  std::vector<bool> low_precision(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (entries[i] == nullptr) return internal_error("trainer: the manifest lacks {}", specs_[i].name);
    low_precision[i] = entries[i]->format != WeightFormat::kBF16 && entries[i]->format != WeightFormat::kF32;
  }
  original_layout_ = ShardLayout(
      shards_, specs_, [&](int64_t i) { return originals && low_precision[static_cast<size_t>(i)]; }, false);
  const size_t bytes = static_cast<size_t>(original_layout_.total()) * sizeof(BF16);
  originals_.ensure(bytes);
  if (bytes > 0) std::memset(originals_.data(), 0, bytes);
  for (int64_t i = 0; i < count(); ++i) {
    const size_t at = static_cast<size_t>(i);
    bits_[at] = nullptr;
    if (shards_.owns(i) || !shards_.holds(i)) continue;
    if (entries[at]->format == WeightFormat::kF32) continue;  // no backward reads it
    if (!low_precision[at]) {
      bits_[at] =
          reinterpret_cast<const BF16*>(static_cast<const std::byte*>(arena) + entries[at]->data_offset);
    } else if (originals) {
      bits_[at] = this->originals() + original_layout_.offset(i);
    }
  }
  return absl::OkStatus();
}

void Parameters::read_weight(int64_t index, int64_t begin, int64_t count, float* out) const {
  if (shards_.owns(index)) {
    kernels::round_to_bf16(master(index).data() + begin, count, out);
    return;
  }
  const BF16* bits = bits_[static_cast<size_t>(index)] + begin;
  for (int64_t i = 0; i < count; ++i) out[i] = to_float(bits[i]);
}

}  // namespace accord::trainer
