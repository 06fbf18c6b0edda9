#pragma once
// A policy of random weights that an engine runs, on the CPU or on a device. Inside of this room.
#include <memory>

#include "bench/measure.hpp"
#include "bench/random_policy.hpp"
#include "bench/rollout.hpp"
#include "rollout/engine.hpp"

namespace accord::bench {

class RolloutPlace {
 public:
  virtual ~RolloutPlace() = default;

  virtual Ceilings bandwidth() = 0;
  virtual int64_t free_bytes() = 0;
  // Makes the weights, in place of those before.
  virtual void load(const RandomPolicy& policy) = 0;
  virtual std::unique_ptr<rollout::Engine> engine(const rollout::EngineOptions& options) = 0;
  virtual int64_t peak_bytes() = 0;  // since the last engine was made
};

std::unique_ptr<RolloutPlace> cpu_place(int threads);
std::unique_ptr<RolloutPlace> device_place(const Device& device);

}  // namespace accord::bench
