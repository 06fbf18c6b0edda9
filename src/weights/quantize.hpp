#pragma once
// Tiles of one tensor: checks, and Q(bf16(master)) into the arena.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/flow.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "precision/plan.hpp"

namespace accord::weights {

// A tensor as rows of its last axis: [N,K] for a linear, [1,H] for a norm.
struct MatrixShape {
  int64_t rows = 1;
  int64_t cols = 1;
};
MatrixShape matrix_shape(const WeightEntry& entry);

// How a plan quantizes this weight: scope tensor; four over six and its range only where they are for
// weights.
formats::Nvfp4Options nvfp4_weight_options(const precision::PlanRow& row);
// Plain for other formats.
Nvfp4Scaling nvfp4_weight_scaling(const precision::PlanRow& row);
Nvfp4Scaling nvfp4_activation_scaling(const precision::PlanRow& row);

// max |x| as fp32 bits; from 0x7f800000 on, a value is not finite.
uint32_t max_abs_bits(std::span<const float> values);

inline constexpr uint32_t kInfBits = 0x7f800000U;

// What became of the masters of a tile.
struct TileHealth {
  int64_t saturated = 0;
  int64_t flushed = 0;  // nonzero masters that are zero now, by BF16 or by the format
};

// `masters`: rows [row_begin, row_begin + masters.size() / cols) of the tensor. For a 16x16 layout both ends
// are multiples of 16, or the tensor's end. `outer`: the unit's A (NVFP4). Writes data and block scales.
TileHealth quantize_tile(const WeightEntry& entry, const precision::PlanRow& row,
                         std::span<const float> masters, int64_t row_begin, float outer, std::byte* arena);

}  // namespace accord::weights
