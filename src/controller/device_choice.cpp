#include "controller/device_choice.hpp"

#include <utility>

namespace accord::controller {
namespace {

using recipe::DeviceChoice;

std::vector<DeviceId> spread(int64_t first, int64_t workers, const std::vector<int>& indices) {
  std::vector<DeviceId> devices;
  for (int64_t rank = 0; rank < workers; ++rank) {
    if (indices.empty()) {
      devices.emplace_back();
    } else {
      const auto at = static_cast<size_t>(first + rank) % indices.size();
      devices.push_back({DeviceKind::kCuda, indices[at]});
    }
  }
  return devices;
}

// Why `auto` takes the CPU; empty: it takes CUDA.
std::string reason_for_cpu(const recipe::Recipe& recipe, const Machine& machine) {
  if (!machine.indices.ok()) {
    return std::string(message_of(machine.indices.status()));
  }
  if (machine.emulated) {
    return "the CUDA devices of this build are emulated";
  }
  if (recipe.model.compute_dtype != Dtype::kBF16) {
    return "model.compute_dtype is not bfloat16";
  }
  if (recipe.trainer.expert_parallel > 1) {
    return fmt::format("trainer.expert_parallel is {}", recipe.trainer.expert_parallel);
  }
  return "";
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.emulated = cuda_is_emulated();
  const StatusOr<std::vector<DeviceInfo>> found = list_cuda_devices();
  if (!found.ok()) {
    machine.indices = found.status();
    return machine;
  }
  std::vector<int> usable;
  Status first_error;
  for (int index = 0; index < static_cast<int>(found->size()); ++index) {
    const Status checked = Device::check({DeviceKind::kCuda, index});
    if (checked.ok()) {
      usable.push_back(index);
    } else if (first_error.ok()) {
      first_error = checked;
    }
  }
  if (usable.empty()) {
    machine.indices = first_error;
  } else {
    machine.indices = std::move(usable);
  }
  return machine;
}

StatusOr<PoolDevices> choose_devices(const recipe::Recipe& recipe, const Machine& machine) {
  const DeviceChoice rollout = recipe.rollout.device;
  const DeviceChoice trainer = recipe.trainer.device;
  PoolDevices out;
  if (rollout == DeviceChoice::kAuto && trainer == DeviceChoice::kAuto) {
    out.reason = reason_for_cpu(recipe, machine);
    out.cuda = out.reason.empty();
    if (out.cuda) {
      out.reason = "this machine has them";
    }
  } else {
    const bool by_rollout = rollout != DeviceChoice::kAuto;
    const char* key = by_rollout ? "rollout.device" : "trainer.device";
    out.cuda = (by_rollout ? rollout : trainer) == DeviceChoice::kCuda;
    out.reason = fmt::format("{} is {}", key, out.cuda ? "cuda" : "cpu");
    if (out.cuda && !machine.indices.ok()) {
      return unavailable_error("{}: {} (use cpu, or auto)", out.reason, message_of(machine.indices.status()));
    }
  }
  const std::vector<int> indices = out.cuda ? *machine.indices : std::vector<int>{};
  out.rollout = spread(0, recipe.rollout.workers, indices);
  out.trainer = spread(recipe.rollout.workers, recipe.trainer.workers, indices);
  return out;
}

recipe::Recipe with_devices(recipe::Recipe recipe, const PoolDevices& devices) {
  recipe.rollout.device = recipe.trainer.device = devices.cuda ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  return recipe;
}

}  // namespace accord::controller
