#pragma once
// MXFP8: 32 values along one axis share one E8M0 scale (docs/contract.md, section 2).
//
//   amax = max |x| over the 32 values          NaN ignored, running max starts at +0
//   e    = E8M0_up( fl(amax * fl(1/448)) )     E5M2: fl(1/57344)
//   q    = E4M3 or E5M2 ( fl(x * 2^(127-e)) )  decoded value: q * 2^(e-127)
//
// x: [M,K] fp32 or bf16, any row stride; q: [M,K] bytes, contiguous, whatever the axis.
//   rows (1x32 along K): K % 32 == 0, scale [M,K/32]
//   cols (32x1 along M): M % 32 == 0, scale [M/32,K]. The caller pads a token axis with zero rows.
// The two copies are quantized independently, never one from the other. Rows (or stripes of 32 rows) do not
// influence each other: callers may split M over threads. Nothing allocates. A shape that check_mxfp8_shape
// refuses is the caller's bug and ends the process; check user input first.
//
// Weights are Q(bf16(master)): round the fp32 master to bf16, a few rows at a time, and pass those.
#include <cstdint>

#include "base/status.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/element.hpp"
#include "kernels/formats/health.hpp"

namespace accord::formats {

constexpr int64_t kMxfp8Block = 32;

enum class Axis : uint8_t { kRow, kCol };

// Whether [rows, cols] divides into blocks along `axis`; the message names shape and rule, not the tensor
// (annotate it with the name). Exit code: bad data.
Status check_mxfp8_shape(int64_t rows, int64_t cols, Axis axis);

// `health` (optional) gets the counts added.
void quantize_mxfp8_rows(MatrixView x, uint8_t* q, uint8_t* scale, Element element,
                         QuantHealth* health = nullptr);
void quantize_mxfp8_cols(MatrixView x, uint8_t* q, uint8_t* scale, Element element,
                         QuantHealth* health = nullptr);

// The same bytes, one element at a time: what the vector code is held against.
void quantize_mxfp8_reference(MatrixView x, uint8_t* q, uint8_t* scale, Axis axis, Element element,
                              QuantHealth* health = nullptr);

// out: [rows, cols] fp32, contiguous.
void dequantize_mxfp8(const uint8_t* q, const uint8_t* scale, int64_t rows, int64_t cols, Axis axis,
                      Element element, float* out);

}  // namespace accord::formats
