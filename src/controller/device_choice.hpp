#pragma once
// Which device each worker of `accord run` computes on, from the recipe and what this machine has.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "device/device.hpp"
#include "recipe/recipe.hpp"

namespace accord::controller {

// What a machine offers; `indices` of CUDA devices that this build can compute on.
struct Machine {
  StatusOr<std::vector<int>> indices = std::vector<int>{};  // an error: why there is none
  bool emulated = false;                                    // they are for tests: `auto` leaves them
};
Machine this_machine();  // opens no device

struct PoolDevices {
  bool cuda = false;
  std::string reason;                      // of the choice, for the log
  std::vector<DeviceId> rollout, trainer;  // per rank
};

// `cuda` for a pool needs a device here; `auto` follows the other pool, else takes CUDA where there is a
// device and the recipe can be computed there. Workers go round the devices, rollout first: any number of
// them may share one. Errors: kUnavailable with the reason.
StatusOr<PoolDevices> choose_devices(const recipe::Recipe& recipe, const Machine& machine);

// The same recipe with both pools' devices said.
recipe::Recipe with_devices(recipe::Recipe recipe, const PoolDevices& devices);

}  // namespace accord::controller
