#include "controller/conversion_plan.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "weights/manifest.hpp"
#include "weights/quantize.hpp"

namespace accord::controller {
namespace {

using checkpoint::Nvfp4Notes;
using checkpoint::QuantMethod;
using checkpoint::TensorSpec;

Nvfp4Notes notes_of(const precision::PlanRow& row) {
  const formats::Nvfp4Options options = weights::nvfp4_weight_options(row);
  Nvfp4Notes notes;
  notes.layout = options.layout == formats::Nvfp4Layout::k16x16 ? "16x16" : "1x16";
  if (options.four_over_six != formats::FourOverSix::kNone) {
    notes.four_over_six = options.four_over_six == formats::FourOverSix::kMse ? "mse" : "mae";
  }
  notes.range = options.range;
  return notes;
}

Status choose_layout(ConversionPlan& plan) {
  std::optional<Nvfp4Notes> notes;
  for (const precision::PlanRow& row : plan.precision.rows) {
    if (!is_quantized(row.format)) {
      continue;
    }
    const QuantMethod method =
        row.format == WeightFormat::kMXFP8 ? QuantMethod::kMxfp8 : QuantMethod::kModelopt;
    if (plan.method != QuantMethod::kNone && plan.method != method) {
      return recipe_error(
          "{}: the plan has MXFP8 and NVFP4 weights, and a checkpoint has one of the two beside BF16; "
          "convert with a recipe that uses one",
          row.name);
    }
    plan.method = method;
    if (row.format == WeightFormat::kNVFP4) {
      if (notes && *notes != notes_of(row)) {
        return recipe_error(
            "{}: its NVFP4 layout or four-over-six options differ from those of other weights, which one "
            "checkpoint cannot say; use one config for all NVFP4 weights",
            row.name);
      }
      notes = notes_of(row);
    }
  }
  plan.notes = notes.value_or(Nvfp4Notes{});
  return absl::OkStatus();
}

// The layouts of docs/contract.md, section 8.
std::vector<TensorSpec> tensors_of(const ParamSpec& spec, WeightFormat format) {
  if (!is_quantized(format)) {
    return {{spec.name, format == WeightFormat::kF32 ? Dtype::kF32 : Dtype::kBF16, spec.shape}};
  }
  const int64_t n = spec.shape[0];
  const int64_t k = spec.shape[1];
  if (format == WeightFormat::kMXFP8) {
    return {{spec.name, Dtype::kF8E4M3, {n, k}},
            {spec.name + "_scale_inv", Dtype::kU8, {n, k / formats::kMxfp8Block}}};
  }
  const std::string module = spec.name.substr(0, spec.name.rfind('.') + 1);
  return {{spec.name, Dtype::kU8, {n, k / 2}},
          {spec.name + "_scale", Dtype::kF8E4M3, {n, k / formats::kNvfp4Block}},
          {spec.name + "_scale_2", Dtype::kF32, {}},
          {module + "input_scale", Dtype::kF32, {}}};
}

// A weight's tensors stay in one shard, so that a tile is quantized once.
Status fill_shards(int64_t max_bytes, ConversionPlan& plan) {
  plan.shards.emplace_back();
  int64_t filled = 0;
  for (const ParamSpec& spec : plan.specs) {
    ConvertedWeight weight;
    weight.spec = &spec;
    weight.row = plan.precision.find(spec.name);
    weight.tensors = tensors_of(spec, weight.row->format);
    for (const TensorSpec& tensor : weight.tensors) {
      ACCORD_ASSIGN_OR_RETURN(const int64_t bytes, checkpoint::checked_bytes(tensor.dtype, tensor.shape));
      weight.bytes += bytes;
    }
    if (!plan.shards.back().empty() && weight.bytes > max_bytes - filled) {
      plan.shards.emplace_back();
      filled = 0;
    }
    filled += weight.bytes;
    if (!weight.row->unit.empty()) {
      plan.units[weight.row->unit].push_back(&spec);
    }
    plan.shards.back().push_back(std::move(weight));
  }
  return absl::OkStatus();
}

// Weights that vLLM and SGLang fuse must agree in format there: q, k and v (or q_a and kv_a of latent
// attention); all experts of a layer.
void warn_of_fusions(ConversionPlan& plan) {
  std::map<std::string, std::set<WeightFormat>> fused;
  bool nvfp4_attention = false;
  for (const ParamSpec& spec : plan.specs) {
    const WeightFormat format = plan.precision.find(spec.name)->format;
    const std::string layer = fmt::format("model.layers.{}.", spec.layer);
    const bool qkv = spec.role == ParamRole::kQ || spec.role == ParamRole::kK || spec.role == ParamRole::kV;
    if (qkv) {
      fused[layer + "self_attn q_proj, k_proj and v_proj"].insert(format);
      nvfp4_attention = nvfp4_attention || format == WeightFormat::kNVFP4;
    } else if (spec.role == ParamRole::kQA || spec.role == ParamRole::kKvA) {
      fused[layer + "self_attn q_a_proj and kv_a_proj_with_mqa"].insert(format);
    } else if (spec.expert >= 0) {
      fused[layer + "mlp.experts"].insert(format);
    } else if (spec.role == ParamRole::kGate || spec.role == ParamRole::kUp) {
      const std::string module = spec.name.substr(0, spec.name.rfind('.'));
      fused[module.substr(0, module.rfind('.')) + " gate_proj and up_proj"].insert(format);
    }
  }
  for (const auto& [name, formats] : fused) {
    if (formats.size() > 1) {
      plan.warnings.push_back(fmt::format(
          "{} differ in format; vLLM and SGLang fuse them and will refuse this checkpoint", name));
    }
  }
  if (nvfp4_attention) {
    plan.warnings.emplace_back(
        "q_proj, k_proj and v_proj have NVFP4 outer scales of their own; vLLM and SGLang fuse the three and "
        "take the largest, which loses accuracy there (accord decodes them as they are)");
  }
}

}  // namespace

StatusOr<ConversionPlan> plan_conversion(const ModelConfig& config, const recipe::PrecisionPart& precision,
                                         int64_t max_shard_bytes) {
  ConversionPlan plan;
  plan.specs = parameter_specs(config);
  ACCORD_ASSIGN_OR_RETURN(plan.precision, precision::build_plan(config, precision));
  ACCORD_RETURN_IF_ERROR(weights::build_manifest(config, plan.precision).status());  // shapes and blocks
  ACCORD_RETURN_IF_ERROR(choose_layout(plan));
  ACCORD_RETURN_IF_ERROR(fill_shards(max_shard_bytes, plan));
  plan.high_precision = checkpoint::high_precision_modules(
      config, [&](const ParamSpec& spec) { return is_quantized(plan.precision.find(spec.name)->format); },
      plan.method == QuantMethod::kModelopt);
  warn_of_fusions(plan);
  return plan;
}

}  // namespace accord::controller
