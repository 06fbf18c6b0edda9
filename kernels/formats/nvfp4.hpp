#pragma once
// NVFP4: 16 values along the last axis share one E4M3 scale, a scope shares one outer fp32 scale A
// (docs/contract.md, section 3, which fixes the order of every operation).
//
//   A  = max |x| over the scope                     NaN ignored, running max starts at +0
//   S  = min(2688/A, FLT_MAX), 1 if A or S is 0;    sd = 1/S;  t = fl(S * fl(1/6))
//   s  = E4M3( min(fl(block_amax * t), FLT_MAX) )   k = min(1/fl(float(s)*sd), FLT_MAX)
//   q  = E2M1( fl(x * k) )                          decoded: fl( q * fl( fl(float(s)*A) * fl(1/2688) ) )
//
// x: [M,K] fp32 or bf16, any row stride, K % 16 == 0. q: [M,K/2] packed bytes, the even index in the low
// nibble; scale: [M,K/16]; amax: [1] (scope tensor) or [M] (scope token). The 16x16 layout takes the block
// amax over 16 rows as well (M % 16 == 0) and repeats the scale byte in each; it decodes like 1x16. Nothing
// allocates. A shape that check_nvfp4_shape refuses is the caller's bug and ends the process.
#include <cstdint>

#include "base/status.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/health.hpp"
#include "kernels/formats/nvfp4_scale.hpp"
#include "kernels/formats/nvfp4_types.hpp"

namespace accord::formats {

OuterScale outer_scale(float amax, int range = 448);

// Whether options agree with each other and with the shape; the message does not name the tensor. Exit code:
// bad data.
Status check_nvfp4_shape(int64_t rows, int64_t cols, const Nvfp4Options& options);

// `shared_amax` (scope tensor only): the A of the whole unit, of which x is a part, such as gate_proj and
// up_proj of one expert, or a range of rows; null takes x's own. `health` (optional) gets the counts added.
void quantize_nvfp4(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out,
                    const float* shared_amax = nullptr, QuantHealth* health = nullptr);

// The same bytes, one element at a time: what the vector code is held against.
void quantize_nvfp4_reference(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out,
                              const float* shared_amax = nullptr, QuantHealth* health = nullptr);

// out: [rows, cols] fp32, contiguous; amax as the scope says; both layouts.
void dequantize_nvfp4(const uint8_t* q, const uint8_t* scale, const float* amax, int64_t rows, int64_t cols,
                      Nvfp4Scope scope, int range, float* out);

}  // namespace accord::formats
