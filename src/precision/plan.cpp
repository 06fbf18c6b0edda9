#include "precision/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/hash.hpp"
#include "precision/pattern.hpp"

namespace accord::precision {
namespace {

using recipe::PrecisionConfig;
using recipe::PrecisionPart;

// A pattern of the recipe, and what became of it.
struct Rule {
  NamePattern pattern;
  std::string name;                         // as messages call it
  const PrecisionConfig* config = nullptr;  // of a matcher
  int64_t matched = 0;                      // weights whose name it matches
  int64_t decided = 0;                      // weights that it decided
  bool megatron_modules = false;            // sees these names only
  bool over_bf16_layers = false;
};

struct Names {
  std::vector<std::string> all;
  std::vector<std::string> megatron_modules;
};

std::optional<std::string_view> structural_reason(ParamRole role) {
  switch (role) {
    case ParamRole::kEmbedding:
      return "structure: embedding";
    case ParamRole::kLmHead:
      return "structure: lm_head";
    case ParamRole::kNorm:
      return "structure: norm";
    case ParamRole::kRouter:
      return "structure: router";
    case ParamRole::kRouterBias:
      return "structure: router bias, exact";
    default:
      return std::nullopt;
  }
}

int64_t block_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kMXFP8:
      return kMxfp8Block;
    case WeightFormat::kNVFP4:
      return kNvfp4Block;
    case WeightFormat::kBF16:
    case WeightFormat::kF32:
      break;
  }
  return 1;
}

std::string_view without_weight(std::string_view name) {
  constexpr std::string_view kSuffix = ".weight";
  return name.ends_with(kSuffix) ? name.substr(0, name.size() - kSuffix.size()) : name;
}

// Weights that stay BF16 unless a matcher's pattern says their name.
struct KeptBf16 {
  std::string_view reason;
  std::vector<std::string_view> names;

  bool named_by(std::string_view pattern) const {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return pattern.find(name) != std::string_view::npos; });
  }
};

std::optional<KeptBf16> kept_bf16(const ParamSpec& spec) {
  if (spec.role == ParamRole::kKvB) {
    return KeptBf16{"rule: kv_b_proj, which plain and absorbed attention contract along different axes",
                    {"kv_b_proj", "linear_kv_up_proj"}};
  }
  if (spec.shared) {
    return KeptBf16{"rule: shared experts", {"shared_expert"}};
  }
  return std::nullopt;
}

std::string unit_of(const ParamSpec& spec) {
  const std::string_view module = without_weight(spec.name);
  if (spec.role == ParamRole::kGate || spec.role == ParamRole::kUp) {
    return std::string(module.substr(0, module.rfind('.') + 1)) + "gate_up_proj";
  }
  return std::string(module);
}

class Planner {
 public:
  Planner(const ModelConfig& config, const PrecisionPart& precision)
      : config_(config),
        precision_(precision),
        first_(precision.bf16_layers.first.resolve(config.num_layers)),
        last_(precision.bf16_layers.last.resolve(config.num_layers)) {
    for (const std::string& pattern : precision.high_precision) {
      exceptions_.push_back(
          {NamePattern(pattern), fmt::format("high_precision \"{}\"", pattern), nullptr, 0, 0});
    }
  }

  StatusOr<PrecisionPlan> build() {
    ACCORD_RETURN_IF_ERROR(collect_matchers());
    PrecisionPlan plan;
    plan.mla = config_.has_mla() ? mla_form_name(config_.mla.form) : "";
    for (const ParamSpec& spec : parameter_specs(config_)) {
      ACCORD_ASSIGN_OR_RETURN(PlanRow row, decide(spec));
      plan.index.emplace(row.name, plan.rows.size());
      plan.rows.push_back(std::move(row));
    }
    ACCORD_RETURN_IF_ERROR(check_units(plan));
    add_warnings(plan.warnings);
    plan.digest = digest(plan);
    return plan;
  }

 private:
  Status collect_matchers() {
    for (const recipe::PrecisionMatcher& matcher : precision_.matchers) {
      if (!matcher.enabled) {
        continue;
      }
      const PrecisionConfig* config = precision_.find_config(matcher.config);
      if (config == nullptr) {
        return recipe_error("precision matcher '{}': no config '{}' (add it to precision.configs)",
                            matcher.name, matcher.config);
      }
      Rule rule{NamePattern(matcher.pattern), fmt::format("matcher {}", matcher.name), config, 0, 0};
      if (matcher.names == recipe::MatchNames::kMegatron) {
        rule.pattern = NamePattern(matcher.pattern, PatternKind::kGlob);
        rule.megatron_modules = true;
      }
      rule.over_bf16_layers = matcher.over_bf16_layers;
      matchers_.push_back(std::move(rule));
    }
    return absl::OkStatus();
  }

  StatusOr<PlanRow> decide(const ParamSpec& spec) {
    PlanRow row;
    row.name = spec.name;
    row.shape = spec.shape;
    row.weight_decay = spec.role != ParamRole::kNorm && spec.role != ParamRole::kRouterBias;
    // Every pattern sees every weight, so that one without effect is noticed.
    const Names names{names_of(spec.name), megatron_modules_of(spec.name)};
    Rule* exception = first_match(exceptions_, names);
    const std::optional<KeptBf16> kept = kept_bf16(spec);
    Rule* matcher = first_match(matchers_, names, kept ? &*kept : nullptr);
    if (const auto reason = structural_reason(spec.role)) {
      row.reason = *reason;
      row.format = spec.role == ParamRole::kRouterBias ? WeightFormat::kF32 : WeightFormat::kBF16;
    } else if (exception != nullptr) {
      ++exception->decided;
      row.reason = exception->name;
    } else if (matcher != nullptr && matcher->over_bf16_layers) {
      ++matcher->decided;
      ACCORD_RETURN_IF_ERROR(apply(*matcher, spec, row));
      ACCORD_RETURN_IF_ERROR(check_kv_b(spec, row));
    } else if (spec.layer >= 0 && spec.layer < first_) {
      row.reason = fmt::format("bf16_layers.first: the first {} of {}", first_, config_.num_layers);
    } else if (spec.layer >= config_.num_layers - last_) {
      row.reason = fmt::format("bf16_layers.last: the last {} of {}", last_, config_.num_layers);
    } else if (matcher != nullptr) {
      ++matcher->decided;
      ACCORD_RETURN_IF_ERROR(apply(*matcher, spec, row));
      ACCORD_RETURN_IF_ERROR(check_kv_b(spec, row));
    } else {
      row.reason = kept ? kept->reason : "no matcher";
    }
    return row;
  }

  Status apply(const Rule& matcher, const ParamSpec& spec, PlanRow& row) {
    const PrecisionConfig& config = *matcher.config;
    const int64_t contracted = spec.shape.back();
    const int64_t block = block_of(config.format);
    if (contracted % block != 0) {
      ++indivisible_;
      row.reason = fmt::format("structure: contracted length {} is no multiple of {} ({})", contracted, block,
                               matcher.name);
      return absl::OkStatus();
    }
    row.reason = fmt::format("{} -> {}", matcher.name, config.name);
    if (config.format == WeightFormat::kBF16) {
      return absl::OkStatus();
    }
    row.format = config.format;
    row.weight_decay = false;
    row.e5m2_gradients = config.e5m2_gradients;
    row.fast_math = config.fast_math;
    const int64_t rows = spec.shape.front();
    if (precision_.backward == recipe::BackwardMode::kQuantized && rows % block != 0) {
      return recipe_error(
          "{}: {} rows are no multiple of {}, which precision.backward: quantized needs for its "
          "column-wise copies (use high_precision, or keep this weight BF16)",
          spec.name, rows, block);
    }
    if (config.format == WeightFormat::kNVFP4) {
      if (config.layout == recipe::ScaleLayout::k16x16 && rows % kNvfp4Block != 0) {
        return recipe_error(
            "{}: {} rows are no multiple of 16, which layout 16x16 needs (use 1x16, or keep this "
            "weight BF16)",
            spec.name, rows);
      }
      row.layout = config.layout;
      row.scope = config.scope;
      row.four_over_six = config.four_over_six;
      row.four_over_six_error = config.four_over_six_error;
      row.four_over_six_range = config.four_over_six_range;
      row.unit = unit_of(spec);
    }
    return absl::OkStatus();
  }

  // The absorbed form multiplies by kv_b_proj along its rows, where a quantized copy has no blocks.
  Status check_kv_b(const ParamSpec& spec, const PlanRow& row) {
    if (spec.role != ParamRole::kKvB || row.format == WeightFormat::kBF16) {
      return absl::OkStatus();
    }
    if (config_.absorbed()) {
      return recipe_error(
          "{}: {}, but model.mla: absorbed contracts it along both axes and needs it in BF16 (drop the "
          "matcher, "
          "or use model.mla: plain)",
          spec.name, row.reason);
    }
    ++quantized_kv_b_;
    return absl::OkStatus();
  }

  // With `kept`, only rules whose pattern says one of its names count.
  static Rule* first_match(std::vector<Rule>& rules, const Names& names, const KeptBf16* kept = nullptr) {
    Rule* first = nullptr;
    for (Rule& rule : rules) {
      if (!rule.pattern.matches_any(rule.megatron_modules ? names.megatron_modules : names.all)) {
        continue;
      }
      ++rule.matched;
      if (first == nullptr && (kept == nullptr || kept->named_by(rule.pattern.text()))) {
        first = &rule;
      }
    }
    return first;
  }

  // gate and up of one MLP share their outer scale, so they are quantized alike or not at all.
  static Status check_units(const PrecisionPlan& plan) {
    constexpr std::string_view kGate = ".gate_proj.weight";
    for (const PlanRow& gate : plan.rows) {
      if (!gate.name.ends_with(kGate)) {
        continue;
      }
      const PlanRow* up = plan.find(gate.name.substr(0, gate.name.size() - kGate.size()) + ".up_proj.weight");
      if (up == nullptr || gate.unit != up->unit || (!gate.unit.empty() && options(gate) != options(*up))) {
        return recipe_error(
            "{}: gate_proj and up_proj are one NVFP4 unit and need the same format, but this is {} ({}) and "
            "its "
            "up_proj {} ({}) (let one pattern match both)",
            gate.name, format_name(gate.format), gate.reason,
            up == nullptr ? "missing" : format_name(up->format), up == nullptr ? "" : up->reason);
      }
    }
    return absl::OkStatus();
  }

  void add_warnings(std::vector<std::string>& warnings) const {
    for (const std::vector<Rule>* rules : {&exceptions_, &matchers_}) {
      for (const Rule& rule : *rules) {
        if (rule.matched == 0) {
          warnings.push_back(fmt::format("{}: pattern \"{}\" matches no weight of this model", rule.name,
                                         rule.pattern.text()));
        } else if (rule.decided == 0 && rule.config != nullptr &&
                   rule.config->format != WeightFormat::kBF16) {
          warnings.push_back(fmt::format("{}: all {} weights that it matches were decided before it",
                                         rule.name, rule.matched));
        }
      }
    }
    for (const PrecisionConfig& config : precision_.configs) {
      bool used = false;
      for (const Rule& rule : matchers_) {
        used = used || rule.config == &config;
      }
      if (!used) {
        warnings.push_back(fmt::format("config {}: no enabled matcher uses it", config.name));
      }
    }
    if (indivisible_ > 0) {
      warnings.push_back(fmt::format(
          "{} weights that a matcher quantizes stay BF16: the block does not divide their contracted length",
          indivisible_));
    }
    if (quantized_kv_b_ > 0) {
      warnings.push_back(fmt::format(
          "{} kv_b_proj weights are quantized: the absorbed form of attention, which inference engines use, "
          "would compute other numbers than this run's plain form",
          quantized_kv_b_));
    }
    const auto check_count = [&](const char* key, const recipe::LayerShare& share) {
      if (!share.is_percent && share.value > static_cast<double>(config_.num_layers)) {
        warnings.push_back(fmt::format("bf16_layers.{}: {} layers of a model that has {}", key, share.value,
                                       config_.num_layers));
      }
    };
    check_count("first", precision_.bf16_layers.first);
    check_count("last", precision_.bf16_layers.last);
  }

  static std::string_view format_name(WeightFormat format) {
    switch (format) {
      case WeightFormat::kBF16:
        return "bf16";
      case WeightFormat::kMXFP8:
        return "mxfp8";
      case WeightFormat::kNVFP4:
        return "nvfp4";
      case WeightFormat::kF32:
        return "fp32";
    }
    return "?";
  }

  // Whatever of a row determines bytes, besides its name and unit.
  static std::string options(const PlanRow& row) {
    return fmt::format("{} {} {} {} {} {} {} {}", static_cast<int>(row.format), static_cast<int>(row.layout),
                       static_cast<int>(row.scope), static_cast<int>(row.four_over_six),
                       static_cast<int>(row.four_over_six_error), row.four_over_six_range, row.e5m2_gradients,
                       row.fast_math);
  }

  static std::string digest(const PrecisionPlan& plan) {
    Hasher hasher;
    hasher.update(kContractVersion);
    if (!plan.mla.empty()) {
      hasher.update("\nmla " + plan.mla);
    }
    for (const PlanRow& row : plan.rows) {
      hasher.update(fmt::format("\n{} {} {}", row.name, options(row), row.unit));
    }
    return hasher.hex();
  }

  const ModelConfig& config_;
  const PrecisionPart& precision_;
  int64_t first_;
  int64_t last_;
  std::vector<Rule> exceptions_;
  std::vector<Rule> matchers_;
  int64_t indivisible_ = 0;
  int64_t quantized_kv_b_ = 0;
};

}  // namespace

const PlanRow* PrecisionPlan::find(std::string_view name) const {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &rows[found->second];
}

bool PrecisionPlan::any(WeightFormat format) const {
  for (const PlanRow& row : rows) {
    if (row.format == format) {
      return true;
    }
  }
  return false;
}

bool heeds(const ParamSpec& spec, std::string_view pattern) {
  const std::optional<KeptBf16> kept = kept_bf16(spec);
  return !kept || kept->named_by(pattern);
}

StatusOr<PrecisionPlan> build_plan(const ModelConfig& config, const PrecisionPart& precision) {
  ACCORD_RETURN_IF_ERROR(validate(config));
  return Planner(config, precision).build();
}

}  // namespace accord::precision
