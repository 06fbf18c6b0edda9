#include "weights/device_export.hpp"

namespace accord::weights {

StatusOr<std::unique_ptr<DeviceExporter>> DeviceExporter::create(const WeightManifest& /*manifest*/,
                                                                 const precision::PrecisionPlan& /*plan*/,
                                                                 const Device& /*device*/,
                                                                 const Stream& /*stream*/,
                                                                 const DeviceExportOptions& /*options*/) {
  return unavailable_error("export of weights: this build has no CUDA");
}

}  // namespace accord::weights
