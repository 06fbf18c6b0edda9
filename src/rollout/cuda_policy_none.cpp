#include "rollout/policy.hpp"

namespace accord::rollout {

StatusOr<std::unique_ptr<Policy>> make_cuda_policy(model::CudaModel& /*model*/, bool /*graphs*/) {
  return unavailable_error("rollout: this build has no CUDA");
}

}  // namespace accord::rollout
