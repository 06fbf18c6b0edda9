#include "weights/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/hash.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "weights/quantize.hpp"

namespace accord::weights {
namespace {

Status check_shape(const precision::PlanRow& row, int64_t rows, int64_t cols) {
  switch (row.format) {
    case WeightFormat::kBF16:
    case WeightFormat::kF32:
      return absl::OkStatus();
    case WeightFormat::kMXFP8:
      return formats::check_mxfp8_shape(rows, cols, formats::Axis::kRow);
    case WeightFormat::kNVFP4:
      return formats::check_nvfp4_shape(rows, cols, nvfp4_weight_options(row));
  }
  return internal_error("an unknown weight format");
}

class Layout {
 public:
  // Places `bytes` bytes; returns {offset, bytes}.
  std::pair<int64_t, int64_t> place(int64_t bytes) {
    const int64_t offset = end_;
    end_ += (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    return {offset, bytes};
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

void place(WeightEntry& entry, int64_t numel, Layout& layout) {
  switch (entry.format) {
    case WeightFormat::kBF16:
      std::tie(entry.data_offset, entry.data_bytes) = layout.place(numel * size_of(Dtype::kBF16));
      break;
    case WeightFormat::kF32:
      std::tie(entry.data_offset, entry.data_bytes) = layout.place(numel * size_of(Dtype::kF32));
      break;
    case WeightFormat::kMXFP8:
      std::tie(entry.data_offset, entry.data_bytes) = layout.place(numel);
      std::tie(entry.scale_offset, entry.scale_bytes) = layout.place(numel / formats::kMxfp8Block);
      break;
    case WeightFormat::kNVFP4:
      std::tie(entry.data_offset, entry.data_bytes) = layout.place(numel / 2);
      std::tie(entry.scale_offset, entry.scale_bytes) = layout.place(numel / formats::kNvfp4Block);
      std::tie(entry.outer_offset, entry.outer_bytes) = layout.place(size_of(Dtype::kF32));
      break;
  }
}

std::string digest_of(const WeightManifest& manifest, const precision::PrecisionPlan& plan) {
  Hasher hasher;
  hasher.update(fmt::format("accord-manifest-1\nplan {}\narena {}\n", plan.digest, manifest.arena_bytes));
  for (const WeightEntry& e : manifest.entries) {
    hasher.update(fmt::format("{} {}", e.name, static_cast<int>(e.format)));
    for (const int64_t dim : e.shape) {
      hasher.update(fmt::format(" {}", dim));
    }
    hasher.update(fmt::format(" : {} {} {} {} {} {} {}\n", e.data_offset, e.data_bytes, e.scale_offset,
                              e.scale_bytes, e.outer_offset, e.outer_bytes, plan.find(e.name)->unit));
  }
  return hasher.hex();
}

}  // namespace

StatusOr<WeightManifest> build_manifest(const ModelConfig& config, const precision::PrecisionPlan& plan) {
  WeightManifest manifest;
  Layout layout;
  for (const ParamSpec& spec : parameter_specs(config)) {
    const precision::PlanRow* row = plan.find(spec.name);
    if (row == nullptr || row->shape != spec.shape) {
      return internal_error("{}: the precision plan {}", spec.name,
                            row == nullptr ? "has no row for it" : "has another shape for it");
    }
    WeightEntry entry;
    entry.name = spec.name;
    entry.format = row->format;
    entry.shape = spec.shape;
    entry.scaling = nvfp4_weight_scaling(*row);
    entry.activations = nvfp4_activation_scaling(*row);
    const MatrixShape shape = matrix_shape(entry);
    const Status status = check_shape(*row, shape.rows, shape.cols);
    if (!status.ok()) {
      return annotate(status, spec.name);
    }
    place(entry, spec.numel(), layout);
    manifest.entries.push_back(std::move(entry));
  }
  manifest.arena_bytes = layout.end();
  manifest.digest = digest_of(manifest, plan);
  return manifest;
}

const WeightEntry* find_entry(const WeightManifest& manifest, std::string_view name) {
  const auto found = std::find_if(manifest.entries.begin(), manifest.entries.end(),
                                  [&](const WeightEntry& entry) { return entry.name == name; });
  return found == manifest.entries.end() ? nullptr : &*found;
}

int64_t payload_bytes(const WeightEntry& entry) {
  return entry.data_bytes + entry.scale_bytes + entry.outer_bytes;
}

int64_t payload_bytes(const WeightManifest& manifest) {
  int64_t bytes = 0;
  for (const WeightEntry& entry : manifest.entries) {
    bytes += payload_bytes(entry);
  }
  return bytes;
}

}  // namespace accord::weights
