#pragma once
// The manifest: where every weight of a policy lies in an arena. A function of (model config, plan) only, so
// that all processes compute the same table without talking.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "precision/plan.hpp"

namespace accord::weights {

inline constexpr int64_t kArenaAlignment = 256;  // of every tensor's data, scales and outer scale

// Entries in canonical parameter order (a tied lm_head has none), each: data, block scales, outer scale, all
// 256-byte aligned. The digest covers names, formats, shapes, offsets, units and the plan's digest.
// Errors: a plan without a row for a parameter, or a shape that its format's block does not divide (both name
// the tensor).
StatusOr<WeightManifest> build_manifest(const ModelConfig& config, const precision::PrecisionPlan& plan);

// nullptr where there is none.
const WeightEntry* find_entry(const WeightManifest& manifest, std::string_view name);

// Bytes of data, scales and outer scale; alignment padding is not counted.
int64_t payload_bytes(const WeightEntry& entry);
int64_t payload_bytes(const WeightManifest& manifest);

}  // namespace accord::weights
