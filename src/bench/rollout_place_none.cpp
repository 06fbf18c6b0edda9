#include "bench/rollout_policy.hpp"

namespace accord::bench {

// No device opens in a build without CUDA.
std::unique_ptr<RolloutPlace> device_place(const Device& /*device*/) { return nullptr; }

}  // namespace accord::bench
