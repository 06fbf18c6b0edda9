#pragma once
// A quantized checkpoint as a source of weights: whether it fits a precision plan, and what its own plan is.
#include <string>

#include "base/status.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "precision/plan.hpp"
#include "recipe/recipe.hpp"

namespace accord::controller {

// An MXFP8 or NVFP4 checkpoint says which weights are quantized; a plan that says something else is refused,
// naming the weight, both formats and the rule of the plan. Unquantized checkpoints and FP8 in blocks of
// 128x128 fit every plan. The error carries exit code kBadData.
Status check_source_formats(const checkpoint::HfCheckpoint& source, const precision::PrecisionPlan& plan);

// What people should know about masters from this checkpoint; empty: nothing.
std::string source_note(const checkpoint::HfCheckpoint& source);

// The precision that quantizes what the checkpoint has quantized (activations per token): what runs without a
// recipe use. All BF16 for an unquantized one and for FP8 in blocks of 128x128.
recipe::PrecisionPart precision_of(const checkpoint::HfCheckpoint& source);

}  // namespace accord::controller
