#include "controller/reference_forward.hpp"

namespace accord::controller {

StatusOr<std::unique_ptr<ReferenceForward>> make_cuda_reference(std::unique_ptr<LocalModel> /*model*/,
                                                                const Device& /*device*/) {
  return unavailable_error("reference policy: this build has no CUDA");
}

}  // namespace accord::controller
