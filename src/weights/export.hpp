#pragma once
// Masters to arena bytes: Q(bf16(master)) per tensor, as the plan says (docs/contract.md, sections 2, 3, 7).
// Streamed in tiles of rows; no tensor is ever held as a whole in BF16.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "device/thread_pool.hpp"
#include "precision/plan.hpp"
#include "weights/arena.hpp"

namespace accord::weights {

// The fp32 values of one tensor, row-major: borrowed (they outlive the export) or owned.
class Master {
 public:
  Master(std::span<const float> borrowed) : values_(borrowed) {}                       // NOLINT: implicit
  Master(std::vector<float> owned) : storage_(std::move(owned)), values_(storage_) {}  // NOLINT: implicit
  Master(Master&&) noexcept = default;
  Master& operator=(Master&&) noexcept = default;
  std::span<const float> values() const { return values_; }

 private:
  std::vector<float> storage_;
  std::span<const float> values_;  // a moved vector keeps its memory
};

// Called with canonical names, by the exporting thread only.
using Masters = std::function<StatusOr<Master>(const std::string& name)>;

struct ExportedTensor {
  std::string name;
  std::string digest;      // of data, block scales and outer scale (weights/digest.hpp)
  double amax = 0.0;       // of bf16(master)
  double saturated = 0.0;  // share of elements beyond the largest value of the format
  double flushed = 0.0;    // share of elements that are not 0 and became 0
};

struct ExportReport {
  std::vector<ExportedTensor> tensors;  // manifest order
};

struct ExportOptions {
  // All masters are checked before the first byte of the arena changes; every master is asked for twice.
  // Without it each unit is checked before it is written, and after an error the arena holds a mix that
  // nobody may use.
  bool check_first = true;
  // Per manifest entry, whether it is exported (whole units: gate and up of one MLP together); empty: all.
  // The others' bytes stay as they are, and the report leaves their digest empty.
  std::vector<bool> owned{};
};

// Errors (kBadData, with the tensor's name): a master of the wrong size; a non-finite master, or one that
// BF16 rounds to infinity. kInternal: manifest and arena or plan do not fit together.
StatusOr<ExportReport> export_weights(const WeightManifest& manifest, const precision::PrecisionPlan& plan,
                                      const Masters& masters, Arena& arena, ThreadPool& pool,
                                      const ExportOptions& options = {});

// The decoded values of one tensor, row-major.
StatusOr<std::vector<float>> dequantize(const WeightEntry& entry, const precision::PrecisionPlan& plan,
                                        const Arena& arena);

}  // namespace accord::weights
