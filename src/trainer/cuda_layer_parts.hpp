#pragma once
// The scratch memory of a layer's backward, by name. Of the files of cuda_layer_backward.hpp alone.
#include <cstddef>

namespace accord::trainer {

enum LayerPart : size_t {
  kDy,            // [T,H] bf16
  kDnorm,         // [T,H]
  kNormPartials,  // rmsnorm_backward_scratch
  kDact,          // [T,I] or [R,I]
  kDgate,         // likewise, bf16
  kDup,
  kDattn,      // [T,Q] bf16
  kDelta,      // [T,heads]
  kDq,         // [T,Q]
  kDk,         // [T,C]
  kDv,         // [T,C]
  kDqOperand,  // their bf16
  kDkOperand,
  kDvOperand,
  kDdown,       // [R,H] bf16
  kDweights,    // [T,K]
  kDlogits,     // [T,E] bf16
  kDexpertIn,   // [R,H]
  kLayerParts,  // their number
};

}  // namespace accord::trainer
