#include "controller/sequence_logits.hpp"

namespace accord::controller {

Status sequence_logits(const DeviceWeights& /*weights*/, const SequenceBatch& /*batch*/,
                       const OnLogits& /*on_logits*/) {
  return unavailable_error("logits: this build has no CUDA");
}

}  // namespace accord::controller
