#include "weights/device_digest.hpp"

namespace accord::weights {

StatusOr<std::unique_ptr<DeviceDigest>> DeviceDigest::create(const WeightManifest& /*manifest*/,
                                                             const Device& /*device*/,
                                                             const DeviceDigestOptions& /*options*/) {
  return unavailable_error("this build has no CUDA");
}

}  // namespace accord::weights
