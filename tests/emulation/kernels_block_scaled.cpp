// The passes around block-scaled products (block_scaled_cuda.hpp).
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/block_scaled/block_scaled_cuda.hpp"
#include "kernels/block_scaled/outer_scale.hpp"
#include "kernels/formats/swizzle.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"

namespace accord::kernels::cuda {

using emulation::Launch;

void tile_scales(const uint8_t* scales, int64_t rows, int64_t inner, uint8_t* tiles, StreamHandle stream) {
  const Launch launch("tile_scales", stream);
  launch.aligned(tiles, 16, "tiles");
  if (rows == 0 || inner == 0) return;
  formats::swizzle_scales(launch.at(scales, rows * inner), rows, inner,
                          launch.at(tiles, formats::swizzled_scale_size(rows, inner)));
}

void pack_expert_rows(const QuantizedMatrix& x, const int32_t* gather, const GroupTile* list,
                      const int32_t* num_tiles, int32_t max_tiles, uint8_t* codes, uint8_t* tiles,
                      StreamHandle stream) {
  constexpr int64_t kRows = 128;
  const Launch launch("pack_expert_rows", stream);
  launch.needs(x.row_bytes % 16 == 0, "rows of whole 16 bytes");
  launch.aligned(x.codes, 16, "x");
  launch.aligned(codes, 16, "codes");
  launch.aligned(tiles, 16, "tiles");
  if (max_tiles == 0) return;
  const int32_t count = *launch.at(num_tiles, 1);
  launch.needs(count <= max_tiles, "no more tiles than their bound");
  const GroupTile* const entries = launch.at(list, count);
  const uint8_t* const from_codes = launch.at(x.codes, x.rows * x.row_bytes);
  const uint8_t* const from_scales = launch.at(x.scales, x.rows * x.inner);
  uint8_t* const to_codes = launch.at(codes, count * kRows * x.row_bytes);
  const int64_t tile_size = formats::swizzled_scale_size(kRows, x.inner);
  uint8_t* const to_tiles = launch.at(tiles, count * tile_size);
  for (int32_t t = 0; t < count; ++t) {
    const GroupTile& tile = entries[t];
    launch.needs(tile.num_rows <= kRows, "tiles of 128 rows at most");
    const int32_t* const rows =
        gather == nullptr ? nullptr : launch.at(gather + tile.row_begin, tile.num_rows);
    std::vector<uint8_t> scales(static_cast<size_t>(kRows * x.inner), 0);
    std::memset(to_codes + t * kRows * x.row_bytes, 0, static_cast<size_t>(kRows * x.row_bytes));
    for (int64_t r = 0; r < tile.num_rows; ++r) {
      const int64_t row = rows == nullptr ? tile.row_begin + r : rows[r];
      launch.needs(row >= 0 && row < x.rows, "rows of x");
      std::copy_n(from_codes + row * x.row_bytes, x.row_bytes, to_codes + (t * kRows + r) * x.row_bytes);
      std::copy_n(from_scales + row * x.inner, x.inner, scales.data() + r * x.inner);
    }
    formats::swizzle_scales(scales.data(), kRows, x.inner, to_tiles + t * tile_size);
  }
}

void apply_outer_scales(const float* sums, const float* x_outer, const int32_t* x_rows, const float* w_outer,
                        MatrixView y, StreamHandle stream) {
  const Launch launch("apply_outer_scales", stream);
  launch.needs(y.cols % 8 == 0, "columns in eights");
  launch.needs(y.dtype == Dtype::kF32 || y.dtype == Dtype::kBF16, "bf16 or fp32");
  launch.aligned(sums, 16, "sums");
  if (y.rows == 0 || y.cols == 0) return;
  const float* from = launch.at(sums, y.rows * y.cols);
  const int32_t* const rows = launch.maybe(x_rows, y.rows);
  const auto x_scale = [&](int64_t r) { return *launch.at(x_outer + (rows == nullptr ? r : rows[r]), 1); };
  const float w_scale = *launch.at(w_outer, 1);
  std::vector<float> values = emulation::floats(y.rows * y.cols);
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t c = 0; c < y.cols; ++c) {
      const auto at = static_cast<size_t>(r * y.cols + c);
      values[at] = block_scaled::apply_outer_scales(from[at], x_scale(r), w_scale);
    }
  }
  emulation::store_rows(values.data(), launch.at(y));
}

}  // namespace accord::kernels::cuda
