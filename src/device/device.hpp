#pragma once
// Where computation runs: the CPU or one CUDA device. The same interface in builds without CUDA, where asking
// for a CUDA device is an error.
//
// Errors of CUDA calls are Status values that name the call (exit code: unavailable). An error that has
// spoiled the device's context, such as a kernel's illegal address, cannot be handled: the process ends at
// once with exit code 70, or 69 if the hardware is lost.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "device/tensor_view.hpp"

namespace accord {

#ifdef ACCORD_WITH_CUDA
inline constexpr bool kBuiltWithCuda = true;
#else
inline constexpr bool kBuiltWithCuda = false;
#endif

struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  bool is_cuda() const { return kind == DeviceKind::kCuda; }
  bool operator==(const DeviceId&) const = default;
};

// "cpu" or "cuda:N"; "cuda" is "cuda:0". Exit code: usage.
StatusOr<DeviceId> parse_device(std::string_view text);
std::string to_string(DeviceId id);

struct DeviceInfo {
  std::string name;
  std::string bus_id;
  int major = 0;  // compute capability
  int minor = 0;
  int num_multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t total_bytes = 0;
};

// The CUDA devices of this machine, in CUDA's order; none is opened. Unavailable, with the reason, where
// there is none: a build without CUDA, no driver, or no device.
StatusOr<std::vector<DeviceInfo>> list_cuda_devices();

// The newest CUDA that the driver serves ("CUDA 13.0"), or "none".
std::string cuda_driver_text();

// Whether the CUDA devices of this build are host code in disguise (preset emulated): for tests.
bool cuda_is_emulated();

// A device that exists and for which this build has kernels.
class Device {
 public:
  Device() = default;  // the CPU
  // Makes it the calling thread's device. The process then has a context there, which takes memory.
  static StatusOr<Device> open(DeviceId id);
  // Whether a device can be opened, as far as that can be told without opening it.
  static Status check(DeviceId id);

  DeviceId id() const { return id_; }
  bool is_cuda() const { return id_.is_cuda(); }
  // Of a CUDA device.
  StatusOr<DeviceInfo> info() const;
  StatusOr<int64_t> free_bytes() const;  // as it is now
  // For people: "cpu", "cuda:0 NVIDIA H200".
  StatusOr<std::string> describe() const;
  // What computes: sums agree bit for bit only where this is the same. "cpu", "sm_90", "sm_100",
  // "emulated sm_90".
  StatusOr<std::string> arithmetic() const;
  // CUDA keeps a current device per thread: a thread that launches on this device's streams calls this first.
  Status make_current() const;
  // Waits for everything that was submitted to it. The CPU has nothing to wait for.
  Status synchronize() const;

 private:
  explicit Device(DeviceId id) : id_(id) {}
  DeviceId id_;
};

}  // namespace accord
