#pragma once
// fp32 to bfloat16, with the rounding of to_bf16 (nearest even, NaN stays a quiet NaN). The exact widening is
// formats::decode_bf16_row.
#include <cstdint>

#include "base/dtype.hpp"

namespace accord::kernels {

void narrow(const float* x, BF16* out, int64_t count);

}  // namespace accord::kernels
