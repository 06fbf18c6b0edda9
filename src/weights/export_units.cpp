#include "weights/export_units.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "base/dtype.hpp"
#include "weights/quantize.hpp"

namespace accord::weights {

StatusOr<ExportUnits> export_units(const WeightManifest& manifest, const precision::PrecisionPlan& plan,
                                   const std::vector<bool>& owned) {
  if (!owned.empty() && owned.size() != manifest.entries.size()) {
    return internal_error("an export filter of {} entries for {} tensors", owned.size(),
                          manifest.entries.size());
  }
  ExportUnits out;
  std::map<std::string, size_t> unit_of;
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    const WeightEntry& entry = manifest.entries[i];
    const precision::PlanRow* row = plan.find(entry.name);
    if (row == nullptr || row->format != entry.format || row->shape != entry.shape) {
      return internal_error("{}: manifest and plan disagree", entry.name);
    }
    out.rows.push_back(row);
    const std::string unit = row->unit.empty() ? entry.name : row->unit;
    const auto [place, is_new] = unit_of.emplace(unit, out.units.size());
    if (is_new) {
      out.units.emplace_back();
    }
    std::vector<size_t>& members = out.units[place->second];
    members.push_back(i);
    if (!owned.empty() && owned[members.front()] != owned[i]) {
      return internal_error("{}: only a part of its unit {} is exported", entry.name, unit);
    }
  }
  if (!owned.empty()) {
    std::erase_if(out.units, [&](const std::vector<size_t>& unit) { return !owned[unit.front()]; });
  }
  return out;
}

bool finite_in_bf16(uint32_t max_abs_bits) {
  return max_abs_bits < kInfBits && std::isfinite(outer_amax(max_abs_bits));
}

Status non_finite_master(const WeightEntry& entry, std::span<const float> masters) {
  const auto bad = std::find_if(masters.begin(), masters.end(),
                                [](float x) { return !std::isfinite(to_float(to_bf16(x))); });
  if (bad == masters.end()) {
    return internal_error("{}: its masters changed while they were exported", entry.name);
  }
  const int64_t cols = matrix_shape(entry).cols;
  const int64_t at = bad - masters.begin();
  return data_error(
      "{}: the master at row {}, column {} is {}: weights must be finite in bfloat16; resume from the last "
      "good checkpoint",
      entry.name, at / cols, at % cols, *bad);
}

float outer_amax(uint32_t max_abs_bits) { return to_float(to_bf16(std::bit_cast<float>(max_abs_bits))); }

}  // namespace accord::weights
