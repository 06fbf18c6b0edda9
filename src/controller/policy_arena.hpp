#pragma once
// A policy's bytes where it computes, and the host's copy of them: received, sent and digested on the host,
// computed with on the device. On the CPU both are one.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"
#include "weights/arena.hpp"

namespace accord::controller {

class PolicyArena {
 public:
  // All zeros. `stream` (of the device; unused on the CPU) must outlive the arena. Errors: memory.
  static StatusOr<std::unique_ptr<PolicyArena>> create(const Device& device, const Stream* stream,
                                                       int64_t bytes);

  // Where the policy reads: memory of the device, at a fixed address.
  std::byte* data() { return device_.is_cuda() ? memory_.as<std::byte>() : host_->data(); }
  weights::Arena& host() { return *host_; }
  bool on_device() const { return device_.is_cuda(); }

  // The host's copy becomes the device's bytes, or the other way round; after all work of the stream, and
  // done when they return. Nothing on the CPU.
  Status upload();
  Status download();

  // The policy becomes the bytes at `from`: the host's copy, or memory of the device. On a device, done when
  // it returns.
  Status take(const std::byte* from);

  // One byte where the policy reads it, changed to byte ^ mask, past the host's copy.
  Status corrupt(int64_t byte, std::byte mask);

 private:
  PolicyArena(const Device& device, const Stream* stream) : device_(device), stream_(stream) {}
  size_t bytes() const { return static_cast<size_t>(host_->size()); }

  const Device device_;
  const Stream* const stream_;
  std::unique_ptr<weights::Arena> host_;
  Memory memory_;  // of the device; none on the CPU
};

}  // namespace accord::controller
