#include "controller/source_check.hpp"

#include <algorithm>

namespace accord::controller {
namespace {

using checkpoint::Encoding;
using checkpoint::QuantMethod;

bool fixes_formats(QuantMethod method) {
  return method == QuantMethod::kMxfp8 || method == QuantMethod::kModelopt ||
         method == QuantMethod::kCompressedTensors;
}

Encoding encoding_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kMXFP8:
      return Encoding::kMxfp8;
    case WeightFormat::kNVFP4:
      return Encoding::kNvfp4;
    case WeightFormat::kBF16:
    case WeightFormat::kF32:
      break;
  }
  return Encoding::kPlain;
}

}  // namespace

Status check_source_formats(const checkpoint::HfCheckpoint& source, const precision::PrecisionPlan& plan) {
  if (!fixes_formats(source.quantization().method)) {
    return absl::OkStatus();
  }
  int64_t differing = 0;
  Status first;
  for (const precision::PlanRow& row : plan.rows) {
    const checkpoint::StoredWeight* stored = source.stored(row.name);
    if (stored == nullptr || stored->encoding == encoding_of(row.format)) {
      continue;
    }
    if (++differing == 1) {
      first = data_error("{}: '{}' is stored in {} ({}), but the recipe's precision plan makes it {} ({})",
                         source.file_of(row.name), row.name, name_of(stored->encoding),
                         name_of(source.quantization().method), name_of(encoding_of(row.format)), row.reason);
    }
  }
  if (differing == 0) {
    return absl::OkStatus();
  }
  return data_error(
      "{}; {} weights disagree: start from the BF16 checkpoint, convert this one to BF16 (accord convert "
      "--format "
      "bf16), or change precision in the recipe",
      message_of(first), differing);
}

std::string source_note(const checkpoint::HfCheckpoint& source) {
  const checkpoint::QuantizationConfig& config = source.quantization();
  if (config.method == QuantMethod::kNone) {
    return "";
  }
  return fmt::format(
      "{} is stored in {}: master weights are its decoded values, and quantizing them again may change "
      "bytes{}",
      source.dir(), name_of(config.method),
      config.claims_cache ? "; its FP8 KV cache is not used, the cache has the compute dtype" : "");
}

recipe::PrecisionPart precision_of(const checkpoint::HfCheckpoint& source) {
  recipe::PrecisionPart precision;
  const checkpoint::QuantizationConfig& config = source.quantization();
  if (!fixes_formats(config.method)) {
    return precision;
  }
  recipe::PrecisionConfig stored;
  stored.name = "stored";
  stored.format = config.method == QuantMethod::kMxfp8 ? WeightFormat::kMXFP8 : WeightFormat::kNVFP4;
  stored.layout = config.nvfp4.layout == "16x16" ? recipe::ScaleLayout::k16x16 : recipe::ScaleLayout::k1x16;
  if (config.nvfp4.four_over_six != "none") {
    stored.four_over_six = recipe::FourOverSix::kWeights;
    stored.four_over_six_error =
        config.nvfp4.four_over_six == "mse" ? recipe::FourOverSixError::kMse : recipe::FourOverSixError::kMae;
    stored.four_over_six_range = config.nvfp4.range;
  }
  precision.configs.push_back(stored);
  precision.matchers.push_back({"stored", "*", stored.name, true});
  const auto add_named = [&](const char* pattern, auto is_one) {  // the plan wants to see their names
    if (std::any_of(source.specs().begin(), source.specs().end(), [&](const ParamSpec& spec) {
          return is_one(spec) && source.stored(spec.name)->encoding != Encoding::kPlain;
        })) {
      precision.matchers.push_back({fmt::format("stored {}", pattern), pattern, stored.name, true});
    }
  };
  add_named(".kv_b_proj.", [](const ParamSpec& spec) { return spec.role == ParamRole::kKvB; });
  add_named(".shared_experts.", [](const ParamSpec& spec) { return spec.shared; });
  precision.high_precision = checkpoint::high_precision_modules(
      source.config(),
      [&](const ParamSpec& spec) { return source.stored(spec.name)->encoding != Encoding::kPlain; }, true);
  return precision;
}

}  // namespace accord::controller
