#include <utility>

#include "rollout/policy.hpp"

namespace accord::rollout {

Status HostPolicy::submit(const Step& step) {
  result_.sampling_seconds = 0.0;
  result_.routing.clear();
  ACCORD_RETURN_IF_ERROR(forward(step.batch, step.record_routing ? &result_.routing : nullptr));
  result_.drawn.assign(step.tasks.size(), DrawnToken{});
  return draw(step.tasks, result_.drawn, result_.sampling_seconds);
}

Status HostPolicy::collect(StepResult& result) {
  std::swap(result, result_);
  return absl::OkStatus();
}

}  // namespace accord::rollout
