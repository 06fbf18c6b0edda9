#include "controller/decoded_check.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "kernels/formats/decode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace accord::controller {
namespace {

// 448 * 2^(code - 127) and less is finite below.
constexpr uint8_t kLargeScale = 246;
// fl(s * A) of the largest block scale, 448, is finite below.
constexpr float kLargeOuter = FLT_MAX / 512.0F;

bool may_overflow(const WeightTile& tile, const TileBytes& bytes) {
  if (tile.format.row->format == WeightFormat::kNVFP4) {
    return tile.format.outer >= kLargeOuter;
  }
  return std::any_of(bytes.scales.begin(), bytes.scales.end(),
                     [](std::byte code) { return std::to_integer<uint8_t>(code) >= kLargeScale; });
}

}  // namespace

Status check_decoded(const WeightTile& tile, const TileBytes& bytes, int range) {
  if (bytes.scales.empty() || !may_overflow(tile, bytes)) {
    return absl::OkStatus();
  }
  const bool nvfp4 = tile.format.row->format == WeightFormat::kNVFP4;
  const int64_t cols = tile.spec->shape.back();
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data.data());
  const auto* scales = reinterpret_cast<const uint8_t*>(bytes.scales.data());
  std::vector<float> values(static_cast<size_t>(cols));
  for (int64_t row = 0; row < tile.rows; ++row) {
    const int64_t at = row * cols;
    if (nvfp4) {
      formats::decode_nvfp4_row(data + at / 2, scales + at / formats::kNvfp4Block, tile.format.outer, range,
                                cols, values.data());
    } else {
      formats::decode_mxfp8_row(data + at, scales + at / formats::kMxfp8Block, cols, values.data());
    }
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !std::isfinite(to_float(to_bf16(value))); });
    if (bad != values.end()) {
      return data_error(
          "tensor '{}', row {}, column {}: its {} decodes to {}, for the weight is too large for this "
          "format; "
          "keep the tensor in BF16",
          tile.spec->name, tile.row_begin + row, bad - values.begin(), nvfp4 ? "NVFP4" : "MXFP8",
          std::fabs(*bad));
    }
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
