#pragma once
// max |x| as the contract takes it: NaN ignored, the running maximum starts at +0, Inf counts.
#include "device/tensor_view.hpp"

namespace accord::formats {

// x: fp32 or bf16. The outer scale of several tensors of one unit is the largest of their amax. bf16 rounding
// is monotonic: amax(bf16(x)) == bf16(amax(x)).
float amax(MatrixView x);

}  // namespace accord::formats
