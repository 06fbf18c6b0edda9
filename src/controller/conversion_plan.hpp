#pragma once
// What a conversion writes: the tensors of each weight, and the shards that they go to.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "checkpoint/quantization_config.hpp"
#include "checkpoint/safetensors.hpp"
#include "precision/plan.hpp"

namespace accord::controller {

// BF16 and the exact fp32 of a router's bias are not.
constexpr bool is_quantized(WeightFormat format) {
  return format == WeightFormat::kMXFP8 || format == WeightFormat::kNVFP4;
}

struct ConvertedWeight {
  const ParamSpec* spec = nullptr;
  const precision::PlanRow* row = nullptr;
  std::vector<checkpoint::TensorSpec> tensors;  // elements first, then block scales, then scalars
  int64_t bytes = 0;

  int64_t cols() const { return spec->shape.empty() ? 1 : spec->shape.back(); }
  int64_t rows() const { return spec->numel() / cols(); }
};

struct ConversionPlan {
  std::vector<ParamSpec> specs;
  precision::PrecisionPlan precision;
  checkpoint::QuantMethod method = checkpoint::QuantMethod::kNone;
  checkpoint::Nvfp4Notes notes;
  std::vector<std::vector<ConvertedWeight>> shards;
  std::map<std::string, std::vector<const ParamSpec*>> units;  // NVFP4: the weights that share an outer scale
  std::vector<std::string> high_precision;                     // modules, for the ignore lists
  std::vector<std::string> warnings;                           // for whoever loads the result elsewhere

  ConversionPlan() = default;
  ConversionPlan(ConversionPlan&&) = default;  // pointers go into vectors, whose memory stays
  ConversionPlan& operator=(ConversionPlan&&) = default;
};

// Recipe errors: two low-precision formats, or NVFP4 weights that differ in layout or four-over-six, which
// one checkpoint cannot say.
StatusOr<ConversionPlan> plan_conversion(const ModelConfig& config, const recipe::PrecisionPart& precision,
                                         int64_t max_shard_bytes);

}  // namespace accord::controller
