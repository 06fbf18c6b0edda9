#pragma once
// decode.hpp on CUDA: stored bytes to fp32 or bf16 (rounded to nearest even), whole matrices, in stream
// order. All pointers are the device's. `out` is a matrix view of [rows, cols] of either dtype; q is
// aligned to 16 bytes.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/element.hpp"
#include "kernels/formats/nvfp4_types.hpp"

namespace accord::formats::cuda {

// Some columns of a matrix of `cols`: `out` is [rows, part], and starts at column `first`. Both are multiples
// of the block. None: `out` is the whole matrix.
struct ColumnPart {
  int64_t cols = 0;
  int64_t first = 0;
};

// Blocks of 32 along rows (scale [rows, cols/32]) or columns (scale [rows/32, cols]).
void dequantize_mxfp8_rows(const uint8_t* q, const uint8_t* scale, Element element, MatrixView out,
                           StreamHandle stream, ColumnPart part = {});
void dequantize_mxfp8_cols(const uint8_t* q, const uint8_t* scale, Element element, MatrixView out,
                           StreamHandle stream);

// The decoded values; amax [1] or [rows].
void dequantize_nvfp4(const uint8_t* q, const uint8_t* scale, const float* amax, Nvfp4Scope scope, int range,
                      MatrixView out, StreamHandle stream, ColumnPart part = {});
// Without the outer scale: E2M1(q) * E4M3(s), exact in both dtypes.
void dequantize_nvfp4_products(const uint8_t* q, const uint8_t* scale, MatrixView out, StreamHandle stream);

}  // namespace accord::formats::cuda
