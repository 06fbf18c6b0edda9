// Tensors are taken in batches of whole units (gate and up of one MLP, or one tensor), cut into tiles of
// rows. Each batch: read masters -> scan tiles (largest magnitude) -> quantize tiles with the unit's outer
// scale -> digests. Tiles are independent, so the thread count never changes a byte.
#include "weights/export.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/formats/decode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "weights/digest.hpp"
#include "weights/export_units.hpp"
#include "weights/quantize.hpp"

namespace accord::weights {
namespace {

constexpr int64_t kTileElements = int64_t{1} << 16;
constexpr int64_t kBatchElements = int64_t{1} << 23;  // bounds what an owning provider holds at a time
constexpr int64_t kTileRows = 16;                     // tiles are multiples of it: a 16x16 block is never cut

// One tensor of the batch in progress.
struct Part {
  size_t index = 0;
  size_t unit = 0;
  Master master;
  int64_t rows_per_tile = 0;
};

struct Tile {
  size_t part = 0;
  int64_t row_begin = 0;
  std::span<const float> masters;
};

class Exporter {
 public:
  Exporter(const WeightManifest& manifest, const precision::PrecisionPlan& plan, const Masters& masters,
           Arena& arena, ThreadPool& pool)
      : manifest_(manifest), plan_(plan), masters_(masters), arena_(arena), pool_(pool) {}

  StatusOr<ExportReport> run(const ExportOptions& options) {
    ACCORD_RETURN_IF_ERROR(prepare(options.owned));
    if (options.check_first) {
      ACCORD_RETURN_IF_ERROR(for_each_batch([this](std::vector<Part>& parts) { return scan(parts); }));
    }
    const Status written = for_each_batch([&](std::vector<Part>& parts) {
      Status status = options.check_first ? absl::OkStatus() : scan(parts);
      if (status.ok()) {
        write(parts);
      }
      return status;
    });
    ACCORD_RETURN_IF_ERROR(written);
    return std::move(report_);
  }

 private:
  Status prepare(const std::vector<bool>& owned);
  Status for_each_batch(const std::function<Status(std::vector<Part>&)>& work);
  StatusOr<Part> read(size_t index, size_t unit) const;
  std::vector<Tile> tiles_of(const std::vector<Part>& parts) const;
  Status scan(const std::vector<Part>& parts);
  Status check_finite(const Part& part) const;
  void write(const std::vector<Part>& parts);

  const WeightManifest& manifest_;
  const precision::PrecisionPlan& plan_;
  const Masters& masters_;
  Arena& arena_;
  ThreadPool& pool_;
  std::vector<std::vector<size_t>> units_;       // of manifest entries
  std::vector<const precision::PlanRow*> rows_;  // per entry
  std::vector<uint32_t> largest_;                // per entry: bits of max |master|
  ExportReport report_;
};

Status Exporter::prepare(const std::vector<bool>& owned) {
  if (arena_.size() < manifest_.arena_bytes) {
    return internal_error("an arena of {} bytes for weights of {}", arena_.size(), manifest_.arena_bytes);
  }
  ACCORD_ASSIGN_OR_RETURN(ExportUnits prepared, export_units(manifest_, plan_, owned));
  rows_ = std::move(prepared.rows);
  units_ = std::move(prepared.units);
  for (const WeightEntry& entry : manifest_.entries) {
    report_.tensors.push_back({entry.name, "", 0.0, 0.0, 0.0});
  }
  largest_.assign(manifest_.entries.size(), 0);
  return absl::OkStatus();
}

Status Exporter::for_each_batch(const std::function<Status(std::vector<Part>&)>& work) {
  std::vector<Part> parts;
  int64_t elements = 0;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (const size_t index : units_[unit]) {
      ACCORD_ASSIGN_OR_RETURN(Part part, read(index, unit));
      elements += static_cast<int64_t>(part.master.values().size());
      parts.push_back(std::move(part));
    }
    if (elements >= kBatchElements || unit + 1 == units_.size()) {
      ACCORD_RETURN_IF_ERROR(work(parts));
      parts.clear();
      elements = 0;
    }
  }
  return absl::OkStatus();
}

StatusOr<Part> Exporter::read(size_t index, size_t unit) const {
  const WeightEntry& entry = manifest_.entries[index];
  auto master = masters_(entry.name);
  if (!master.ok()) {
    return annotate(master.status(), entry.name);
  }
  const MatrixShape shape = matrix_shape(entry);
  const auto got = static_cast<int64_t>(master->values().size());
  if (got != shape.rows * shape.cols) {
    return data_error("{}: the master has {} values, the weight {} x {}", entry.name, got, shape.rows,
                      shape.cols);
  }
  const int64_t rows = std::max<int64_t>(kTileElements / shape.cols / kTileRows, 1) * kTileRows;
  return Part{index, unit, *std::move(master), rows};
}

std::vector<Tile> Exporter::tiles_of(const std::vector<Part>& parts) const {
  std::vector<Tile> tiles;
  for (size_t p = 0; p < parts.size(); ++p) {
    const MatrixShape shape = matrix_shape(manifest_.entries[parts[p].index]);
    for (int64_t begin = 0; begin < shape.rows; begin += parts[p].rows_per_tile) {
      const int64_t rows = std::min(parts[p].rows_per_tile, shape.rows - begin);
      tiles.push_back({p, begin,
                       parts[p].master.values().subspan(static_cast<size_t>(begin * shape.cols),
                                                        static_cast<size_t>(rows * shape.cols))});
    }
  }
  return tiles;
}

Status Exporter::scan(const std::vector<Part>& parts) {
  const std::vector<Tile> tiles = tiles_of(parts);
  std::vector<uint32_t> largest(tiles.size());
  pool_.parallel_for(static_cast<int64_t>(tiles.size()), [&](int64_t t) {
    const auto index = static_cast<size_t>(t);
    largest[index] = max_abs_bits(tiles[index].masters);
  });
  for (const Part& part : parts) {
    largest_[part.index] = 0;
  }
  for (size_t t = 0; t < tiles.size(); ++t) {
    uint32_t& entry_largest = largest_[parts[tiles[t].part].index];
    entry_largest = std::max(entry_largest, largest[t]);
  }
  for (const Part& part : parts) {
    ACCORD_RETURN_IF_ERROR(check_finite(part));
  }
  return absl::OkStatus();
}

Status Exporter::check_finite(const Part& part) const {
  return finite_in_bf16(largest_[part.index])
             ? absl::OkStatus()
             : non_finite_master(manifest_.entries[part.index], part.master.values());
}

void Exporter::write(const std::vector<Part>& parts) {
  std::vector<float> outer(parts.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    uint32_t largest = 0;
    for (const size_t index : units_[parts[p].unit]) {
      largest = std::max(largest, largest_[index]);
    }
    outer[p] = outer_amax(largest);
  }
  const std::vector<Tile> tiles = tiles_of(parts);
  std::vector<TileHealth> health(tiles.size());
  pool_.parallel_for(static_cast<int64_t>(tiles.size()), [&](int64_t t) {
    const auto index = static_cast<size_t>(t);
    const Tile& tile = tiles[index];
    const size_t entry = parts[tile.part].index;
    health[index] = quantize_tile(manifest_.entries[entry], *rows_[entry], tile.masters, tile.row_begin,
                                  outer[tile.part], arena_.data());
  });
  std::vector<TileHealth> total(parts.size());
  for (size_t t = 0; t < tiles.size(); ++t) {
    total[tiles[t].part].saturated += health[t].saturated;
    total[tiles[t].part].flushed += health[t].flushed;
  }
  pool_.parallel_for(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const auto p = static_cast<size_t>(i);
    const size_t index = parts[p].index;
    const WeightEntry& entry = manifest_.entries[index];
    if (entry.outer_bytes > 0) {
      std::memcpy(arena_.data() + entry.outer_offset, &outer[p], sizeof(float));
    }
    ExportedTensor& tensor = report_.tensors[index];
    const auto numel = static_cast<double>(parts[p].master.values().size());
    tensor.digest = tensor_digest(entry, arena_.data());
    tensor.amax = outer_amax(largest_[index]);
    tensor.saturated = static_cast<double>(total[p].saturated) / numel;
    tensor.flushed = static_cast<double>(total[p].flushed) / numel;
  });
}

}  // namespace

StatusOr<ExportReport> export_weights(const WeightManifest& manifest, const precision::PrecisionPlan& plan,
                                      const Masters& masters, Arena& arena, ThreadPool& pool,
                                      const ExportOptions& options) {
  return Exporter(manifest, plan, masters, arena, pool).run(options);
}

StatusOr<std::vector<float>> dequantize(const WeightEntry& entry, const precision::PrecisionPlan& plan,
                                        const Arena& arena) {
  const precision::PlanRow* row = plan.find(entry.name);
  if (row == nullptr || row->format != entry.format) {
    return internal_error("{}: manifest and plan disagree", entry.name);
  }
  const MatrixShape shape = matrix_shape(entry);
  std::vector<float> out(static_cast<size_t>(shape.rows * shape.cols));
  const auto* data = reinterpret_cast<const uint8_t*>(arena.data() + entry.data_offset);
  const auto* scales = reinterpret_cast<const uint8_t*>(arena.data() + entry.scale_offset);
  switch (entry.format) {
    case WeightFormat::kBF16:
      formats::decode_bf16_row(reinterpret_cast<const BF16*>(data), shape.rows * shape.cols, out.data());
      break;
    case WeightFormat::kF32:
      std::copy_n(reinterpret_cast<const float*>(data), out.size(), out.begin());
      break;
    case WeightFormat::kMXFP8:
      formats::dequantize_mxfp8(data, scales, shape.rows, shape.cols, formats::Axis::kRow,
                                formats::Element::kE4M3, out.data());
      break;
    case WeightFormat::kNVFP4: {
      float outer = 0;
      std::memcpy(&outer, arena.data() + entry.outer_offset, sizeof(outer));
      formats::dequantize_nvfp4(data, scales, &outer, shape.rows, shape.cols, formats::Nvfp4Scope::kTensor,
                                nvfp4_weight_options(*row).range, out.data());
      break;
    }
  }
  return out;
}

}  // namespace accord::weights
