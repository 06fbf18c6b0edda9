#pragma once
// Whether what a weight was quantized to decodes to finite values. Values near the end of fp32's range may
// not: docs/contract.md rounds up a scale or multiplies it by A first.
#include "base/status.hpp"
#include "controller/weight_tiles.hpp"

namespace accord::controller {

// `range`: of NVFP4, 448 or 256. Errors (65): a value that decodes to one that is not finite in BF16; names
// tensor, row and column. Costs nothing for weights of ordinary size.
Status check_decoded(const WeightTile& tile, const TileBytes& bytes, int range);

}  // namespace accord::controller
