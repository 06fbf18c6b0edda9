#pragma once
// The environment variables with which Transformer Engine, FlashInfer and SGLang choose a precision recipe.
// With precision.from_environment they set the recipe's values; one that contradicts a value which the recipe
// writes, or another variable, is an error. Without it they are not read, and a set one is noted as ignored.
//
//   NVTE_BACKWARD_OVERRIDE                      high_precision | dequantized        backward
//   NVTE_NVFP4_ROW_SCALED_ACTIVATION            1 | 0                               scope: token | tensor
//   SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION  the same
//   NVTE_NVFP4_DISABLE_2D_QUANTIZATION          1 | 0                               layout: 1x16 | 16x16
//   NVTE_NVFP4_DISABLE_RHT, NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING  1               always so here
//   NVTE_USE_FAST_MATH                          0 | 1                               fast_math: false | true
//   FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH, TRTLLM_DISABLE_FP4_QUANT_FAST_MATH  1 | 0  the same
//   NVTE_NVFP4_4OVER6                           none | weights | activations | all  four_over_six
//   NVTE_NVFP4_4OVER6_E4M3_USE_256              none | weights | activations | all  four_over_six_range
//   NVTE_NVFP4_4OVER6_ERR_MODE                  MAE | MSE                           four_over_six_error
//   NVTE_NVFP4_4OVER6_ERR_USE_FAST_MATH         0                                   always so here
//   FLASHINFER_NVFP4_4OVER6, ..._E4M3_USE_256   1 | 0: of activations, must agree with the recipe
//   FLASHINFER_NVFP4_4OVER6_ERR_MODE, ..._ERR_USE_FAST_MATH  as those of Transformer Engine
#include <string>
#include <string_view>
#include <vector>

#include "recipe/reader.hpp"
#include "recipe/recipe.hpp"

namespace accord::recipe {

// A variable of the list above, or one that looks like those of NVFP4 (NVTE_NVFP4_..., FLASHINFER_NVFP4_...).
bool concerns_precision(std::string_view name);

// Applies `environment` when precision.from_environment asks for it, and clears the key; otherwise notes what
// is ignored, and which variables only look like known ones. Settings of NVFP4 apply to every NVFP4 config.
void resolve_environment(const Environment& environment, PrecisionPart& precision, Findings& findings,
                         std::vector<std::string>& notes);

}  // namespace accord::recipe
