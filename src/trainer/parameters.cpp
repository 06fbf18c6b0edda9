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

Parameters::Parameters(ParameterTable table) : ParameterTable(std::move(table)) {
  allocate_zero(gradients_, held().total());
  for (Buffer* buffer : {&masters_, &exp_avg_, &exp_avg_sq_}) allocate_zero(*buffer, owned().total());
  bits_.resize(static_cast<size_t>(count()));
}

StatusOr<Parameters> Parameters::create(const ModelConfig& config, std::span<const std::string> no_decay,
                                        Shards shards) {
  ACCORD_ASSIGN_OR_RETURN(ParameterTable table, ParameterTable::create(config, no_decay, std::move(shards)));
  return Parameters(std::move(table));
}

std::span<float> Parameters::view(const Buffer& buffer, const ShardLayout& layout, int64_t index) const {
  const int64_t offset = layout.offset(index);
  if (offset < 0) return {};
  return {buffer.as<float>() + offset, static_cast<size_t>(spec(index).numel())};
}

std::span<float> Parameters::owned_gradients() const {
  const int32_t rank = shards().rank();
  return {gradients_.as<float>() + held().section_begin(rank),
          static_cast<size_t>(held().section(rank, rank))};
}

void Parameters::clear_gradients() { allocate_zero(gradients_, held().total()); }

void Parameters::clear_moments() {
  for (Buffer* buffer : {&exp_avg_, &exp_avg_sq_}) allocate_zero(*buffer, owned().total());
}

Status Parameters::bind(const WeightManifest& manifest, const void* arena, bool originals) {
  if (shards().size() == 1) return absl::OkStatus();
  ACCORD_ASSIGN_OR_RETURN(const std::vector<const WeightEntry*> all, entries(manifest));
  ACCORD_ASSIGN_OR_RETURN(original_layout_, plan_originals(manifest, originals));
  const size_t bytes = static_cast<size_t>(original_layout_.total()) * sizeof(BF16);
  originals_.ensure(bytes);
  if (bytes > 0) std::memset(originals_.data(), 0, bytes);
  for (int64_t i = 0; i < count(); ++i) {
    const WeightEntry& entry = *all[static_cast<size_t>(i)];
    const BF16*& bits = bits_[static_cast<size_t>(i)];
    bits = nullptr;
    if (shards().owns(i) || !shards().holds(i)) continue;
    if (entry.format == WeightFormat::kF32) continue;  // no backward reads it
    if (!is_low_precision(entry)) {
      bits = reinterpret_cast<const BF16*>(static_cast<const std::byte*>(arena) + entry.data_offset);
    } else if (originals) {
      bits = this->originals() + original_layout_.offset(i);
    }
  }
  return absl::OkStatus();
}

void Parameters::read_weight(int64_t index, int64_t begin, int64_t count, float* out) const {
  if (shards().owns(index)) {
    kernels::round_to_bf16(master(index).data() + begin, count, out);
    return;
  }
  const BF16* bits = bits_[static_cast<size_t>(index)] + begin;
  for (int64_t i = 0; i < count; ++i) out[i] = to_float(bits[i]);
}

}  // namespace accord::trainer
