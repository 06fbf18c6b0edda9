#pragma once
// One linear layer of the trainer in one format and backward mode. Inside of this room.
#include "base/weight_format.hpp"
#include "bench/memory.hpp"
#include "recipe/recipe.hpp"

namespace accord::bench {

struct LinearMode {
  WeightFormat format;
  recipe::BackwardMode backward;
  const char* format_name;
  const char* mode_name;
};
// NVFP4 has no quantized backward (docs/recipe.md).
inline constexpr LinearMode kLinearModes[] = {
    {WeightFormat::kMXFP8, recipe::BackwardMode::kQuantized, "mxfp8", "quantized"},
    {WeightFormat::kMXFP8, recipe::BackwardMode::kHighPrecision, "mxfp8", "high_precision"},
    {WeightFormat::kMXFP8, recipe::BackwardMode::kDequantized, "mxfp8", "dequantized"},
    {WeightFormat::kNVFP4, recipe::BackwardMode::kHighPrecision, "nvfp4", "high_precision"},
    {WeightFormat::kNVFP4, recipe::BackwardMode::kDequantized, "nvfp4", "dequantized"},
};

MemoryResult measure_linear(const MemoryOptions& options, const LinearMode& mode);

}  // namespace accord::bench
