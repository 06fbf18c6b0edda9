// Per tensor: max |master| -> (host: all finite? outer scales of units) -> tiles of rows: bf16 -> quantizer
// -> what it saw. Counters of all tensors lie in one block, copied down once per half. After an update that
// exported, max and counts are given, and only NVFP4 is left.
#include <algorithm>
#include <cstring>
#include <utility>

#include "device/memory.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/formats/health_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "weights/device_digest.hpp"
#include "weights/device_export.hpp"
#include "weights/digest.hpp"
#include "weights/export_units.hpp"
#include "weights/quantize.hpp"
#include "weights/spans.hpp"

namespace accord::weights {
namespace {

using formats::QuantHealth;

constexpr int64_t kTileRows = 16;  // a 16x16 block is never cut

// Counters of an export, one block on the device and its copy on the host.
struct Counters {
  // Offsets into the block. Per entry: bits of max |master|, outer scale, masters that BF16 makes zero; per
  // tile: what the quantizer saw.
  size_t largest = 0;
  size_t outer = 0;
  size_t flushed = 0;
  size_t health = 0;
  size_t bytes = 0;
  Memory device;
  Memory host;

  void lay_out(size_t entries, size_t tiles) {
    health = 0;
    flushed = health + tiles * sizeof(QuantHealth);
    largest = flushed + entries * sizeof(int64_t);
    outer = largest + entries * sizeof(uint32_t);
    bytes = outer + entries * sizeof(float);
  }
  template <class T>
  T* on_device(size_t offset) const {
    return reinterpret_cast<T*>(device.as<std::byte>() + offset);
  }
  template <class T>
  T* on_host(size_t offset) const {
    return reinterpret_cast<T*>(host.as<std::byte>() + offset);
  }
};

class CudaExporter final : public DeviceExporter {
 public:
  CudaExporter(const WeightManifest& manifest, const Device& device, const Stream& stream, ExportUnits units,
               int64_t tile_elements)
      : manifest_(manifest),
        device_(device),
        stream_(stream),
        units_(std::move(units)),
        tile_elements_(tile_elements) {}

  Status prepare();
  StatusOr<ExportReport> run(const DeviceMasters& masters, std::byte* arena, Arena* host,
                             ThreadPool& pool) override;
  StatusOr<ExportReport> finish(const DeviceMasters& masters, std::span<const ExportCounts> counts,
                                std::byte* arena, Arena* host, ThreadPool& pool) override;

 private:
  // A tensor's rows [begin, begin + rows) at a time.
  int64_t tile_rows(size_t entry) const {
    const int64_t cols = matrix_shape(manifest_.entries[entry]).cols;
    return std::max<int64_t>(tile_elements_ / cols / kTileRows, 1) * kTileRows;
  }
  bool has_outer_scale(size_t entry) const { return manifest_.entries[entry].format == WeightFormat::kNVFP4; }
  bool is_quantized(size_t entry) const {
    const WeightFormat format = manifest_.entries[entry].format;
    return format == WeightFormat::kMXFP8 || format == WeightFormat::kNVFP4;
  }
  template <class Visit>
  Status for_each_entry(const Visit& visit) const {
    for (const std::vector<size_t>& unit : units_.units) {
      for (const size_t entry : unit) {
        ACCORD_RETURN_IF_ERROR(visit(entry));
      }
    }
    return absl::OkStatus();
  }

  Status begin(const DeviceMasters& masters, const Arena* host);
  Status find_largest();
  Status check_finite() const;
  Status set_outer_scales();
  Status write(size_t entry, std::byte* arena);
  Status write_quantized(size_t entry, std::byte* arena);
  void quantize(size_t entry, std::byte* arena);
  Status copy_down(const std::byte* arena, Arena& host) const;
  StatusOr<std::vector<std::string>> digests_on_device(const std::byte* arena);
  // The end of an export: copies, waits, digests. `counts`: of the update that exported, if one did.
  StatusOr<ExportReport> complete(const std::byte* arena, Arena* host, std::span<const ExportCounts> counts,
                                  ThreadPool& pool);
  ExportReport report(const std::function<std::string(size_t)>& digest_of,
                      std::span<const ExportCounts> counts, ThreadPool& pool) const;

  const WeightManifest& manifest_;
  const Device device_;
  const Stream& stream_;
  const ExportUnits units_;
  const int64_t tile_elements_;
  std::vector<const float*> masters_;  // per entry
  std::vector<size_t> first_tile_;     // per entry
  std::vector<ArenaSpan> spans_;       // what is exported
  Counters counters_;
  std::unique_ptr<DeviceDigest> digest_;  // from the first export without the host on
  Memory narrowed_;                       // a tile in BF16
  Memory health_scratch_;
};

Status CudaExporter::prepare() {
  const size_t entries = manifest_.entries.size();
  size_t tiles = 0;
  int64_t largest_tile = 0;
  std::vector<size_t> exported;
  masters_.assign(entries, nullptr);
  first_tile_.assign(entries, 0);
  ACCORD_RETURN_IF_ERROR(for_each_entry([&](size_t entry) {
    exported.push_back(entry);
    if (is_quantized(entry)) {
      const MatrixShape shape = matrix_shape(manifest_.entries[entry]);
      const int64_t rows = tile_rows(entry);
      first_tile_[entry] = tiles;
      tiles += static_cast<size_t>((shape.rows + rows - 1) / rows);
      largest_tile = std::max(largest_tile, std::min(rows, shape.rows) * shape.cols);
    }
    return absl::OkStatus();
  }));
  std::sort(exported.begin(), exported.end());
  for (const size_t entry : exported) {
    const ArenaSpan span = tensor_span(manifest_, entry);
    if (!spans_.empty() && spans_.back().end == span.begin) {
      spans_.back().end = span.end;
    } else {
      spans_.push_back(span);
    }
  }
  counters_.lay_out(entries, tiles);
  ACCORD_ASSIGN_OR_RETURN(counters_.device, Memory::allocate(device_, counters_.bytes));
  ACCORD_ASSIGN_OR_RETURN(counters_.host, Memory::allocate(device_, counters_.bytes, MemoryKind::kPinned));
  std::memset(counters_.host.data(), 0, counters_.bytes);
  ACCORD_RETURN_IF_ERROR(stream_.fill(counters_.device.data(), 0, counters_.bytes));
  ACCORD_ASSIGN_OR_RETURN(narrowed_,
                          Memory::allocate(device_, static_cast<size_t>(largest_tile) * sizeof(BF16)));
  ACCORD_ASSIGN_OR_RETURN(health_scratch_,
                          Memory::allocate(device_, formats::cuda::kHealthScratch * sizeof(QuantHealth)));
  return stream_.synchronize();
}

Status CudaExporter::begin(const DeviceMasters& masters, const Arena* host) {
  if (host != nullptr && host->size() < manifest_.arena_bytes) {
    return internal_error("an arena of {} bytes for weights of {}", host->size(), manifest_.arena_bytes);
  }
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  return for_each_entry([&](size_t entry) {
    masters_[entry] = masters(manifest_.entries[entry].name);
    return masters_[entry] != nullptr
               ? absl::OkStatus()
               : internal_error("{}: there are no masters of it here", manifest_.entries[entry].name);
  });
}

Status CudaExporter::find_largest() {
  const size_t entries = manifest_.entries.size();
  auto* const device = counters_.on_device<uint32_t>(counters_.largest);
  auto* const largest = counters_.on_host<uint32_t>(counters_.largest);
  ACCORD_RETURN_IF_ERROR(for_each_entry([&](size_t entry) {
    const MatrixShape shape = matrix_shape(manifest_.entries[entry]);
    kernels::cuda::max_abs_bits(masters_[entry], shape.rows * shape.cols, device + entry, stream_.handle());
    return absl::OkStatus();
  }));
  ACCORD_RETURN_IF_ERROR(stream_.copy(largest, device, entries * sizeof(uint32_t)));
  return stream_.synchronize();
}

Status CudaExporter::check_finite() const {
  const auto* const largest = counters_.on_host<uint32_t>(counters_.largest);
  return for_each_entry([&](size_t entry) -> Status {
    if (finite_in_bf16(largest[entry])) {
      return absl::OkStatus();
    }
    const MatrixShape shape = matrix_shape(manifest_.entries[entry]);
    std::vector<float> values(static_cast<size_t>(shape.rows * shape.cols));
    ACCORD_RETURN_IF_ERROR(stream_.copy(values.data(), masters_[entry], values.size() * sizeof(float)));
    ACCORD_RETURN_IF_ERROR(stream_.synchronize());
    return non_finite_master(manifest_.entries[entry], values);
  });
}

Status CudaExporter::set_outer_scales() {
  const auto* const largest = counters_.on_host<uint32_t>(counters_.largest);
  auto* const outer = counters_.on_host<float>(counters_.outer);
  for (const std::vector<size_t>& unit : units_.units) {
    uint32_t of_unit = 0;
    for (const size_t entry : unit) {
      of_unit = std::max(of_unit, largest[entry]);
    }
    for (const size_t entry : unit) {
      outer[entry] = outer_amax(of_unit);
    }
  }
  return stream_.copy(counters_.on_device<float>(counters_.outer), outer,
                      manifest_.entries.size() * sizeof(float));
}

Status CudaExporter::write(size_t index, std::byte* arena) {
  const WeightEntry& entry = manifest_.entries[index];
  const MatrixShape shape = matrix_shape(entry);
  const int64_t count = shape.rows * shape.cols;
  std::byte* const data = arena + entry.data_offset;
  if (entry.format == WeightFormat::kF32) {
    return stream_.copy(data, masters_[index], static_cast<size_t>(count) * sizeof(float));
  }
  kernels::cuda::flushed_by_bf16(masters_[index], count,
                                 counters_.on_device<int64_t>(counters_.flushed) + index, stream_.handle());
  if (entry.format == WeightFormat::kBF16) {
    kernels::cuda::round_to_bf16(masters_[index], count, reinterpret_cast<BF16*>(data), stream_.handle());
    return absl::OkStatus();
  }
  return write_quantized(index, arena);
}

Status CudaExporter::write_quantized(size_t index, std::byte* arena) {
  quantize(index, arena);
  const WeightEntry& entry = manifest_.entries[index];
  if (entry.outer_bytes == 0) {
    return absl::OkStatus();
  }
  // The unit's, whether or not the quantizer handed it back.
  return stream_.copy(arena + entry.outer_offset, counters_.on_device<float>(counters_.outer) + index,
                      sizeof(float));
}

void CudaExporter::quantize(size_t index, std::byte* arena) {
  const WeightEntry& entry = manifest_.entries[index];
  const MatrixShape shape = matrix_shape(entry);
  auto* const data = reinterpret_cast<uint8_t*>(arena + entry.data_offset);
  auto* const scales = reinterpret_cast<uint8_t*>(arena + entry.scale_offset);
  float* const outer = counters_.on_device<float>(counters_.outer) + index;
  const formats::Nvfp4Options options = nvfp4_weight_options(*units_.rows[index]);
  auto* health = counters_.on_device<QuantHealth>(counters_.health) + first_tile_[index];
  auto* const scratch = health_scratch_.as<QuantHealth>();
  for (int64_t row = 0; row < shape.rows; row += tile_rows(index), ++health) {
    const int64_t rows = std::min(tile_rows(index), shape.rows - row);
    const int64_t begin = row * shape.cols;
    kernels::cuda::round_to_bf16(masters_[index] + begin, rows * shape.cols, narrowed_.as<BF16>(),
                                 stream_.handle());
    const MatrixView tile = matrix_view(narrowed_.as<BF16>(), rows, shape.cols);
    if (entry.format == WeightFormat::kMXFP8) {
      uint8_t* const scale = scales + begin / precision::kMxfp8Block;
      formats::cuda::quantize_mxfp8_rows(tile, data + begin, scale, formats::Element::kE4M3,
                                         stream_.handle());
      formats::cuda::measure_mxfp8_rows(tile, scale, formats::Element::kE4M3, health, scratch,
                                        stream_.handle());
    } else {
      uint8_t* const scale = scales + begin / precision::kNvfp4Block;
      const formats::Nvfp4Output out{data + begin / 2, scale,
                                     reinterpret_cast<float*>(arena + entry.outer_offset)};
      formats::cuda::quantize_nvfp4(tile, options, out, outer, nullptr, stream_.handle());
      formats::cuda::measure_nvfp4(tile, options, scale, outer, health, scratch, stream_.handle());
    }
  }
}

Status CudaExporter::copy_down(const std::byte* arena, Arena& host) const {
  for (const ArenaSpan& span : spans_) {
    ACCORD_RETURN_IF_ERROR(stream_.copy(host.data() + span.begin, arena + span.begin,
                                        static_cast<size_t>(span.end - span.begin)));
  }
  return absl::OkStatus();
}

StatusOr<std::vector<std::string>> CudaExporter::digests_on_device(const std::byte* arena) {
  if (!digest_) {
    std::vector<bool> chosen(manifest_.entries.size(), false);
    ACCORD_RETURN_IF_ERROR(for_each_entry([&](size_t entry) {
      chosen[entry] = true;
      return absl::OkStatus();
    }));
    ACCORD_ASSIGN_OR_RETURN(digest_, DeviceDigest::create(manifest_, device_, {.chosen = std::move(chosen)}));
  }
  ACCORD_RETURN_IF_ERROR(digest_->begin(arena));
  ACCORD_RETURN_IF_ERROR(digest_->end(stream_));
  ACCORD_RETURN_IF_ERROR(digest_->stream().synchronize());
  return digest_->digests();
}

StatusOr<ExportReport> CudaExporter::complete(const std::byte* arena, Arena* host,
                                              std::span<const ExportCounts> counts, ThreadPool& pool) {
  if (host != nullptr) {
    ACCORD_RETURN_IF_ERROR(copy_down(arena, *host));
  }
  const size_t seen = counts.empty() ? counters_.largest : counters_.flushed;  // health, flushed; or health
  ACCORD_RETURN_IF_ERROR(stream_.copy(counters_.host.data(), counters_.device.data(), seen));
  ACCORD_RETURN_IF_ERROR(stream_.synchronize());
  if (host != nullptr) {
    return report([&](size_t index) { return tensor_digest(manifest_.entries[index], host->data()); }, counts,
                  pool);
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> digests, digests_on_device(arena));
  return report([&](size_t index) { return digests[index]; }, counts, pool);
}

ExportReport CudaExporter::report(const std::function<std::string(size_t)>& digest_of,
                                  std::span<const ExportCounts> counts, ThreadPool& pool) const {
  ExportReport report;
  for (const WeightEntry& entry : manifest_.entries) {
    report.tensors.push_back({entry.name, "", 0.0, 0.0, 0.0});
  }
  const auto* const largest = counters_.on_host<uint32_t>(counters_.largest);
  const auto* const flushed = counters_.on_host<int64_t>(counters_.flushed);
  const auto* const health = counters_.on_host<QuantHealth>(counters_.health);
  pool.parallel_for(static_cast<int64_t>(units_.units.size()), [&](int64_t unit) {
    for (const size_t index : units_.units[static_cast<size_t>(unit)]) {
      const WeightEntry& entry = manifest_.entries[index];
      const MatrixShape shape = matrix_shape(entry);
      TileHealth total;
      if (entry.format != WeightFormat::kF32) {
        total = counts.empty() ? TileHealth{0, flushed[index]}
                               : TileHealth{counts[index].saturated, counts[index].flushed};
      }
      if (counts.empty() ? is_quantized(index) : has_outer_scale(index)) {
        const auto tiles = static_cast<size_t>((shape.rows + tile_rows(index) - 1) / tile_rows(index));
        for (size_t tile = 0; tile < tiles; ++tile) {
          total.saturated += health[first_tile_[index] + tile].saturated;
          total.flushed += health[first_tile_[index] + tile].flushed;
        }
      }
      const auto numel = static_cast<double>(shape.rows * shape.cols);
      ExportedTensor& tensor = report.tensors[index];
      tensor.digest = digest_of(index);
      tensor.amax = outer_amax(largest[index]);
      tensor.saturated = static_cast<double>(total.saturated) / numel;
      tensor.flushed = static_cast<double>(total.flushed) / numel;
    }
  });
  return report;
}

StatusOr<ExportReport> CudaExporter::run(const DeviceMasters& masters, std::byte* arena, Arena* host,
                                         ThreadPool& pool) {
  ACCORD_RETURN_IF_ERROR(begin(masters, host));
  ACCORD_RETURN_IF_ERROR(find_largest());
  ACCORD_RETURN_IF_ERROR(check_finite());
  ACCORD_RETURN_IF_ERROR(set_outer_scales());
  ACCORD_RETURN_IF_ERROR(for_each_entry([&](size_t entry) { return write(entry, arena); }));
  return complete(arena, host, {}, pool);
}

StatusOr<ExportReport> CudaExporter::finish(const DeviceMasters& masters,
                                            std::span<const ExportCounts> counts, std::byte* arena,
                                            Arena* host, ThreadPool& pool) {
  if (counts.size() != manifest_.entries.size()) {
    return internal_error("an export of {} tensors after an update of {}", manifest_.entries.size(),
                          counts.size());
  }
  ACCORD_RETURN_IF_ERROR(begin(masters, host));
  auto* const largest = counters_.on_host<uint32_t>(counters_.largest);
  for (size_t entry = 0; entry < counts.size(); ++entry) {
    largest[entry] = counts[entry].largest_bits;
  }
  ACCORD_RETURN_IF_ERROR(check_finite());
  ACCORD_RETURN_IF_ERROR(set_outer_scales());
  ACCORD_RETURN_IF_ERROR(for_each_entry([&](size_t entry) {
    return has_outer_scale(entry) ? write_quantized(entry, arena) : absl::OkStatus();
  }));
  return complete(arena, host, counts, pool);
}

}  // namespace

StatusOr<std::unique_ptr<DeviceExporter>> DeviceExporter::create(const WeightManifest& manifest,
                                                                 const precision::PrecisionPlan& plan,
                                                                 const Device& device, const Stream& stream,
                                                                 const DeviceExportOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(ExportUnits units, export_units(manifest, plan, options.owned));
  auto exporter =
      std::make_unique<CudaExporter>(manifest, device, stream, std::move(units), options.tile_elements);
  ACCORD_RETURN_IF_ERROR(exporter->prepare());
  return exporter;
}

}  // namespace accord::weights
