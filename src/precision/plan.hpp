#pragma once
// Which weight gets which number format (docs/contract.md, section 6). One table, computed once by one
// function; checkpoint conversion, trainer, export and rollout read it, and its digest travels in every
// handshake.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "recipe/recipe.hpp"

namespace accord::precision {

// Goes into every digest: a change of the contract's bytes changes it.
inline constexpr std::string_view kContractVersion = "accord-contract-1";

inline constexpr int64_t kMxfp8Block = 32;  // values of the contracted axis that share a scale
inline constexpr int64_t kNvfp4Block = 16;

struct PlanRow {
  std::string name;  // canonical
  std::vector<int64_t> shape;
  WeightFormat format = WeightFormat::kBF16;
  // The options of its config; they mean something for the formats named only.
  recipe::ScaleLayout layout = recipe::ScaleLayout::k1x16;                        // NVFP4
  recipe::ScaleScope scope = recipe::ScaleScope::kToken;                          // NVFP4, activations
  recipe::FourOverSix four_over_six = recipe::FourOverSix::kNone;                 // NVFP4
  recipe::FourOverSixError four_over_six_error = recipe::FourOverSixError::kMse;  // NVFP4
  int64_t four_over_six_range = 448;                                              // NVFP4
  bool e5m2_gradients = false;                                                    // MXFP8
  bool fast_math = false;
  // Rows with the same unit share one outer scale: gate_proj and up_proj of one MLP are
  // "<mlp>.gate_up_proj", any other NVFP4 weight is alone under its own name. Empty for BF16 and MXFP8.
  std::string unit;
  bool weight_decay = false;  // never for quantized weights and norms
  std::string reason;         // the rule that decided, for people
};

struct PrecisionPlan {
  std::vector<PlanRow> rows;  // in the order of parameter_specs()
  // Things that a recipe says without effect, such as a pattern that matches no weight. They do not stop a
  // run, but whoever starts one should see them as errors of the recipe.
  std::vector<std::string> warnings;
  std::string mla;     // the form of latent attention: plain or absorbed; empty where the model has none
  std::string digest;  // 32 hex digits over kContractVersion and what determines bytes in each row

  const PlanRow* find(std::string_view name) const;  // nullptr: no such weight
  bool any(WeightFormat format) const;

  std::string to_json() const;  // {contract, digest, warnings, weights: [{name, format, ...}]}
  std::string to_text() const;  // a table; experts that agree are one line

  std::map<std::string, size_t, std::less<>> index;  // name -> row
};

// Order of decision, first hit wins: structure (embeddings, lm_head, norms, routers; a contracted axis that
// the block does not divide), high_precision patterns, first and last layers (unless the first matcher that
// matches has over_bf16_layers), matchers in order, else BF16.
// For kv_b_proj and shared experts only matchers count whose pattern says their name. Quantized kv_b_proj is
// a recipe error under the absorbed form, and a warning under the plain one. Recipe errors name the tensor:
// half of a gate+up unit in NVFP4, rows that a 16x16 layout or the column-wise copies of backward `quantized`
// do not divide.
StatusOr<PrecisionPlan> build_plan(const ModelConfig& config, const recipe::PrecisionPart& precision);

// Whether a matcher with this pattern may decide the weight: for kv_b_proj and shared experts it must say
// their name.
bool heeds(const ParamSpec& spec, std::string_view pattern);

}  // namespace accord::precision
