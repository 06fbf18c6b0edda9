#pragma once
// The passes around a block-scaled product (products.hpp) on CUDA, in stream order. All pointers are the
// device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

namespace accord::kernels::cuda {

// Scales [rows, inner] into tiles of 128 x 4 (formats/swizzle.hpp), the rest of which becomes zero; tiles:
// swizzled_scale_size(rows, inner) bytes, aligned to 16.
void tile_scales(const uint8_t* scales, int64_t rows, int64_t inner, uint8_t* tiles, StreamHandle stream);

// Rows of experts, apart: tile t of the list (128 rows at most) becomes rows [128 t, 128 t + 128) of `codes`
// and of the scale `tiles`; what it has no row for becomes zero. Row r of the sorted order is row r of x, or
// gather[r]. All of x, codes and tiles are aligned to 16; row_bytes % 16 == 0.
struct QuantizedMatrix {
  const uint8_t* codes = nullptr;   // [rows, row_bytes]
  const uint8_t* scales = nullptr;  // [rows, inner]
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t inner = 0;
};
void pack_expert_rows(const QuantizedMatrix& x, const int32_t* gather, const GroupTile* list,
                      const int32_t* num_tiles, int32_t max_tiles, uint8_t* codes, uint8_t* tiles,
                      StreamHandle stream);

// y [rows, n] (bf16 or fp32) = sums * fl(x_outer[row] * w_outer[0]), rounded once; the row of x_outer is that
// of y, or x_rows[row]. sums [rows, n] contiguous, aligned to 16; n % 8 == 0.
void apply_outer_scales(const float* sums, const float* x_outer, const int32_t* x_rows, const float* w_outer,
                        MatrixView y, StreamHandle stream);

}  // namespace accord::kernels::cuda
