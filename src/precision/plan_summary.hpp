#pragma once
// A plan in sums: parameters and bytes of each kind of weight in each format, and why one weight has its
// format.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "precision/plan.hpp"

namespace accord::precision {

std::string_view format_word(WeightFormat format);  // bf16, mxfp8, ...

// Weights that differ in layer and expert only, and have the same format.
struct PlanGroup {
  std::string module;  // self_attn.kv_b_proj, mlp.experts.*.up_proj, lm_head, ...
  WeightFormat format = WeightFormat::kBF16;
  int64_t weights = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;  // elements and scales, as a checkpoint holds them
};

struct PlanSummary {
  int64_t parameters = 0;
  int64_t routed = 0;             // of them in experts that the router chooses
  int64_t shared = 0;             // in shared experts
  std::vector<PlanGroup> groups;  // in the order of the plan

  int64_t experts() const { return routed + shared; }
  // All groups of one format; the module is empty.
  PlanGroup total(WeightFormat format) const;

  std::string to_text() const;  // sums, then a table of groups
};

PlanSummary summarize(const PrecisionPlan& plan);

// Every rule that the plan asked about `tensor`, which of them match, and which decided. `tensor` is any name
// of a weight, a Megatron one too; where that is several weights, those decided alike are told once. An
// unknown name is an error (kUsage).
StatusOr<std::string> explain(const ModelConfig& config, const recipe::PrecisionPart& precision,
                              const PrecisionPlan& plan, std::string_view tensor);

}  // namespace accord::precision
