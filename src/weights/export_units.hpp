#pragma once
// What exports on any device share: which tensors are quantized together, and what is refused.
#include <cstddef>
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "precision/plan.hpp"

namespace accord::weights {

struct ExportUnits {
  std::vector<const precision::PlanRow*> rows;  // per manifest entry; of the plan
  // Manifest entries that are exported, by unit: gate and up of one MLP, or one tensor.
  std::vector<std::vector<size_t>> units;
};

// `owned` as in ExportOptions. Errors (kInternal): manifest and plan do not fit together, a filter of another
// size, or one that cuts a unit.
StatusOr<ExportUnits> export_units(const WeightManifest& manifest, const precision::PrecisionPlan& plan,
                                   const std::vector<bool>& owned);

// Whether every master with these bits of max |x| is finite, also in BF16.
bool finite_in_bf16(uint32_t max_abs_bits);
// The error (kBadData) about the first master for which that does not hold.
Status non_finite_master(const WeightEntry& entry, std::span<const float> masters);

// A of a unit: bf16 of the largest magnitude among its masters, whose bits these are. Rounding is monotonic.
float outer_amax(uint32_t max_abs_bits);

}  // namespace accord::weights
