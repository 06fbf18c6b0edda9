#include "weights/quantize.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/formats/mxfp8.hpp"
#include "kernels/math/convert.hpp"

namespace accord::weights {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffU;
constexpr uint32_t kLargestFlushedByBf16 = 0x8000U;  // half of BF16's least subnormal: the tie goes to zero

int64_t flushed_by_bf16(std::span<const float> values) {
  int64_t count = 0;
  for (const float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) & kMagnitude;
    count += bits - 1U < kLargestFlushedByBf16 ? 1 : 0;
  }
  return count;
}

// `of`: weights or activations; both where the plan says so.
Nvfp4Scaling scaling_of(const precision::PlanRow& row, recipe::FourOverSix of) {
  if (row.format != WeightFormat::kNVFP4 ||
      (row.four_over_six != of && row.four_over_six != recipe::FourOverSix::kAll)) {
    return {};
  }
  const bool mse = row.four_over_six_error == recipe::FourOverSixError::kMse;
  return {mse ? FourOverSix::kMse : FourOverSix::kMae, static_cast<int32_t>(row.four_over_six_range)};
}

}  // namespace

MatrixShape matrix_shape(const WeightEntry& entry) {
  MatrixShape shape;
  shape.cols = entry.shape.empty() ? 1 : entry.shape.back();
  for (size_t i = 0; i + 1 < entry.shape.size(); ++i) {
    shape.rows *= entry.shape[i];
  }
  return shape;
}

Nvfp4Scaling nvfp4_weight_scaling(const precision::PlanRow& row) {
  return scaling_of(row, recipe::FourOverSix::kWeights);
}

Nvfp4Scaling nvfp4_activation_scaling(const precision::PlanRow& row) {
  return scaling_of(row, recipe::FourOverSix::kActivations);
}

formats::Nvfp4Options nvfp4_weight_options(const precision::PlanRow& row) {
  formats::Nvfp4Options options;
  options.scope = formats::Nvfp4Scope::kTensor;
  options.layout =
      row.layout == recipe::ScaleLayout::k16x16 ? formats::Nvfp4Layout::k16x16 : formats::Nvfp4Layout::k1x16;
  const Nvfp4Scaling scaling = nvfp4_weight_scaling(row);
  options.four_over_six = scaling.four_over_six;
  options.range = scaling.range;
  return options;
}

uint32_t max_abs_bits(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  }
  return largest;
}

TileHealth quantize_tile(const WeightEntry& entry, const precision::PlanRow& row,
                         std::span<const float> masters, int64_t row_begin, float outer, std::byte* arena) {
  const int64_t cols = matrix_shape(entry).cols;
  const auto count = static_cast<int64_t>(masters.size());
  const int64_t begin = row_begin * cols;
  if (entry.format == WeightFormat::kF32) {
    std::copy(masters.begin(), masters.end(), reinterpret_cast<float*>(arena + entry.data_offset) + begin);
    return {};
  }
  TileHealth health{0, flushed_by_bf16(masters)};
  if (entry.format == WeightFormat::kBF16) {
    kernels::narrow(masters.data(), reinterpret_cast<BF16*>(arena + entry.data_offset) + begin, count);
    return health;
  }
  std::vector<BF16> narrowed(masters.size());
  kernels::narrow(masters.data(), narrowed.data(), count);
  const MatrixView tile = matrix_view(narrowed.data(), count / cols, cols);
  auto* data = reinterpret_cast<uint8_t*>(arena + entry.data_offset);
  auto* scales = reinterpret_cast<uint8_t*>(arena + entry.scale_offset);
  formats::QuantHealth seen;
  if (entry.format == WeightFormat::kMXFP8) {
    formats::quantize_mxfp8_rows(tile, data + begin, scales + begin / formats::kMxfp8Block,
                                 formats::Element::kE4M3, &seen);
  } else {
    float unused = 0;  // the quantizer hands back the A that it was given
    const formats::Nvfp4Output out{data + begin / 2, scales + begin / formats::kNvfp4Block, &unused};
    formats::quantize_nvfp4(tile, nvfp4_weight_options(row), out, &outer, &seen);
  }
  health.saturated += seen.saturated;
  health.flushed += seen.flushed;
  return health;
}

}  // namespace accord::weights
