#pragma once
// The digests of digest.hpp, of an arena in device memory, taken there while its bytes arrive: the same
// values.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "device/device.hpp"
#include "device/stream.hpp"

namespace accord::weights {

struct DeviceDigestOptions {
  std::vector<bool> chosen{};  // per tensor; empty: all
  // Bytes of an arena that are digested in one go: the least that must have arrived, and 16 times the
  // scratch.
  int64_t pass_bytes = int64_t{256} << 20;
  // The byte that arrives first, a tensor's first (spans.hpp); those before it come after the arena's last.
  int64_t first_byte = 0;
};

class DeviceDigest {
 public:
  // Takes its memory now. The manifest must outlive it. Errors: memory; unavailable in a build without CUDA.
  static StatusOr<std::unique_ptr<DeviceDigest>> create(const WeightManifest& manifest, const Device& device,
                                                        const DeviceDigestOptions& options = {});
  virtual ~DeviceDigest() = default;

  // Starts on an arena of the device (256-byte aligned), whose bytes arrive in ascending order from
  // first_byte. An earlier one's work must be done.
  virtual Status begin(const std::byte* arena) = 0;
  // The first `count` bytes are there when what is in `arrival` now is done. Works on a stream of its own.
  virtual Status advance(int64_t count, const Stream& arrival) = 0;
  // As advance, for all bytes, and the end of all digests.
  virtual Status end(const Stream& arrival) = 0;
  // Where the work is. After end() it must be waited for before digests() is called.
  virtual const Stream& stream() const = 0;
  // 32 hex digits per tensor, manifest order; empty text for one that is not chosen.
  virtual std::vector<std::string> digests() const = 0;
};

}  // namespace accord::weights
