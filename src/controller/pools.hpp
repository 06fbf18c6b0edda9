#pragma once
// The two pools of a run, as the loop sees them, and the one way to ask all members something at once.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "controller/worker.hpp"

namespace accord::controller {

struct Pools {
  std::vector<std::unique_ptr<RolloutWorker>> rollout;
  std::vector<std::unique_ptr<TrainerWorker>> trainer;

  size_t size() const { return rollout.size() + trainer.size(); }
  // Trainers first, as in the weight group.
  Worker& member(size_t index) const;
  std::string name(size_t index) const;  // trainer/0, rollout/1
};

// Runs task(0..count-1), each on its own thread, and waits for all. OK, or the first error in index
// order, where a lost connection (kUnavailable) counts only if there is no other error.
Status for_all(size_t count, const std::function<Status(size_t)>& task);

}  // namespace accord::controller
