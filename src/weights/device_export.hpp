#pragma once
// export.hpp where masters and arena lie on a CUDA device: the same bytes, the same report. The host waits
// twice, once for the check of all masters and once at the end.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/export_counts.hpp"
#include "base/flow.hpp"
#include "base/status.hpp"
#include "device/device.hpp"
#include "device/stream.hpp"
#include "device/thread_pool.hpp"
#include "precision/plan.hpp"
#include "weights/arena.hpp"
#include "weights/export.hpp"

namespace accord::weights {

// The fp32 values of one tensor on the device, row-major; null: there are none.
using DeviceMasters = std::function<const float*(const std::string& name)>;

struct DeviceExportOptions {
  std::vector<bool> owned{};  // as in ExportOptions
  // Elements of a tensor that are quantized at a time, which bounds the scratch (2 bytes each, at least 16
  // rows) and changes no byte.
  int64_t tile_elements = int64_t{1} << 25;
};

class DeviceExporter {
 public:
  // Takes its scratch and counters on the device now: exports allocate nothing. Manifest, plan and stream
  // must outlive the exporter. Errors: those of export_weights about manifest and plan, and memory;
  // unavailable in a build without CUDA.
  static StatusOr<std::unique_ptr<DeviceExporter>> create(const WeightManifest& manifest,
                                                          const precision::PrecisionPlan& plan,
                                                          const Device& device, const Stream& stream,
                                                          const DeviceExportOptions& options = {});
  virtual ~DeviceExporter() = default;

  // Q(bf16(master)) into `arena` (of the device), and the bytes of what was exported from there into `host`,
  // whose digests the report has. Without a `host` (null) the digests are taken on the device. The masters
  // come from work on the same stream, or are complete. No byte of either arena changes before all masters
  // were checked. Errors: those of export_weights.
  virtual StatusOr<ExportReport> run(const DeviceMasters& masters, std::byte* arena, Arena* host,
                                     ThreadPool& pool) = 0;

  // The same where an optimizer's update, earlier on the stream, has already written BF16, MXFP8 and F32
  // tensors into `arena` and counted what it saw, per manifest entry: only NVFP4 tensors are read and
  // quantized here. Masters that are not finite are refused likewise, but then `arena` holds a mix that
  // nobody may use, while `host` is as it was. Errors besides those of run (kInternal): counts of another
  // number of tensors.
  virtual StatusOr<ExportReport> finish(const DeviceMasters& masters, std::span<const ExportCounts> counts,
                                        std::byte* arena, Arena* host, ThreadPool& pool) = 0;
};

}  // namespace accord::weights
