#include "device/device.hpp"

#include <charconv>

#include "device/backend.hpp"

namespace accord {
namespace {

// What the kernels are compiled for (cmake/cuda.cmake): sm_90a, and the family of sm_100f.
bool has_kernels_for(const DeviceInfo& info) {
  return (info.major == 9 && info.minor == 0) || (info.major == 10 && (info.minor == 0 || info.minor == 3));
}

StatusOr<int> usable_devices() {
  ACCORD_ASSIGN_OR_RETURN(const int count, backend::device_count());
  if (count == 0) {
    return unavailable_error("this machine has no CUDA device");
  }
  return count;
}

}  // namespace

StatusOr<DeviceId> parse_device(std::string_view text) {
  if (text == "cpu") {
    return DeviceId{};
  }
  if (text == "cuda") {
    return DeviceId{DeviceKind::kCuda, 0};
  }
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const std::string_view number = text.substr(kPrefix.size());
    int index = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error == std::errc() && end == number.data() + number.size() && index >= 0) {
      return DeviceId{DeviceKind::kCuda, index};
    }
  }
  return usage_error("device '{}': use cpu or cuda:N, such as cuda:0", text);
}

std::string to_string(DeviceId id) {
  return id.is_cuda() ? fmt::format("cuda:{}", id.index) : std::string("cpu");
}

StatusOr<std::vector<DeviceInfo>> list_cuda_devices() {
  ACCORD_ASSIGN_OR_RETURN(const int count, usable_devices());
  std::vector<DeviceInfo> devices;
  for (int device = 0; device < count; ++device) {
    ACCORD_ASSIGN_OR_RETURN(DeviceInfo info, backend::device_info(device));
    devices.push_back(std::move(info));
  }
  return devices;
}

std::string cuda_driver_text() { return backend::driver_text(); }

Status Device::check(DeviceId id) {
  if (!id.is_cuda()) {
    return absl::OkStatus();
  }
  const StatusOr<int> count = usable_devices();
  if (!count.ok()) {
    return annotate(count.status(), to_string(id));
  }
  if (id.index < 0 || id.index >= *count) {
    return unavailable_error("{}: this machine has {} CUDA device{}, numbered from 0", to_string(id), *count,
                             *count == 1 ? "" : "s");
  }
  ACCORD_ASSIGN_OR_RETURN(const DeviceInfo info, backend::device_info(id.index));
  if (!has_kernels_for(info)) {
    return unavailable_error(
        "{}: {} has compute capability {}.{}; the kernels are for 9.0 (Hopper), 10.0 and 10.3 "
        "(Blackwell)",
        to_string(id), info.name, info.major, info.minor);
  }
  return absl::OkStatus();
}

StatusOr<Device> Device::open(DeviceId id) {
  ACCORD_RETURN_IF_ERROR(check(id));
  const Device device(id);
  ACCORD_RETURN_IF_ERROR(device.make_current());
  return device;
}

bool cuda_is_emulated() {
#ifdef ACCORD_CUDA_EMULATED
  return true;
#else
  return false;
#endif
}

StatusOr<DeviceInfo> Device::info() const {
  if (!is_cuda()) {
    return internal_error("the CPU has no device information");
  }
  return backend::device_info(id_.index);
}

StatusOr<int64_t> Device::free_bytes() const {
  if (!is_cuda()) {
    return internal_error("the CPU has no device memory");
  }
  return backend::free_bytes(id_.index);
}

StatusOr<std::string> Device::describe() const {
  if (!is_cuda()) {
    return to_string(id_);
  }
  ACCORD_ASSIGN_OR_RETURN(const DeviceInfo found, info());
  return to_string(id_) + " " + found.name;
}

StatusOr<std::string> Device::arithmetic() const {
  if (!is_cuda()) {
    return std::string("cpu");
  }
  ACCORD_ASSIGN_OR_RETURN(const DeviceInfo found, info());
  return fmt::format("{}sm_{}{}", cuda_is_emulated() ? "emulated " : "", found.major, found.minor);
}

Status Device::make_current() const { return is_cuda() ? backend::set_device(id_.index) : absl::OkStatus(); }

Status Device::synchronize() const {
  return is_cuda() ? backend::synchronize_device(id_.index) : absl::OkStatus();
}

}  // namespace accord
