#pragma once
// The scratch memory of the head, by name. Of the files of cuda_pass.hpp alone.
#include <cstddef>

namespace accord::trainer {

enum HeadPart : size_t {
  kLogits,       // [n,V]
  kNormed,       // [n,H] bf16
  kInvRms,       // [n]
  kTokenValues,  // [4,n]: log-probs, entropies, and the loss's derivatives with respect to them
  kHeadDlogits,  // [n,V] bf16
  kDnormed,      // [n,H]
  kHeadX,        // [n,H] bf16
  kHeadDx,       // [n,H]
  kHeadParts,    // their number
};

}  // namespace accord::trainer
