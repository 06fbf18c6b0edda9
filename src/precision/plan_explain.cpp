#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/strict_json.hpp"
#include "precision/pattern.hpp"
#include "precision/plan_summary.hpp"
#include "recipe/reader.hpp"

namespace accord::precision {
namespace {

const char* answer(bool matches) { return matches ? "matches" : "does not match"; }

const char* answer(const ParamSpec& spec, const recipe::PrecisionMatcher& matcher) {
  if (!matcher.enabled) {
    return "not enabled";
  }
  const NamePattern pattern(matcher.pattern, matcher.names == recipe::MatchNames::kMegatron
                                                 ? PatternKind::kGlob
                                                 : PatternKind::kGlobOrSubstring);
  const bool hit = pattern.matches_any(
      matcher.names == recipe::MatchNames::kMegatron ? megatron_modules_of(spec.name) : names_of(spec.name));
  return hit && !heeds(spec, matcher.pattern) ? "matches, but does not say this weight's name, which it must"
                                              : answer(hit);
}

// The rules in the order in which they decide, and what each says of one weight.
std::string rules_text(const ModelConfig& config, const recipe::PrecisionPart& precision,
                       const ParamSpec& spec, const PlanRow& row) {
  std::string out = fmt::format("decided by    {}\n", row.reason);
  for (const std::string& pattern : precision.high_precision) {
    out += fmt::format("  high_precision \"{}\": {}\n", pattern,
                       answer(NamePattern(pattern).matches_any(names_of(row.name))));
  }
  const int64_t first = precision.bf16_layers.first.resolve(config.num_layers);
  const int64_t last = precision.bf16_layers.last.resolve(config.num_layers);
  if (first > 0 || last > 0) {
    const bool inside = spec.layer >= 0 && (spec.layer < first || spec.layer >= config.num_layers - last);
    out += fmt::format("  bf16_layers, the first {} and last {} of {}: {}\n", first, last, config.num_layers,
                       inside ? "one of them" : "none of them");
  }
  for (const recipe::PrecisionMatcher& matcher : precision.matchers) {
    out += fmt::format("  matcher {} \"{}\" -> {}{}: {}\n", matcher.name, matcher.pattern, matcher.config,
                       matcher.over_bf16_layers ? ", over bf16_layers" : "", answer(spec, matcher));
  }
  return out;
}

// Any name of a weight that `tensor` may be a slip of.
std::optional<std::string> near_name(const ModelConfig& config, std::string_view tensor) {
  constexpr size_t kFarther = 3;  // characters more or fewer; spares comparing every name of a large model
  std::vector<std::string> names;
  for (const ParamSpec& spec : parameter_specs(config)) {
    for (std::string& name : names_of(spec.name)) {
      if (std::max(name.size(), tensor.size()) - std::min(name.size(), tensor.size()) <= kFarther) {
        names.push_back(std::move(name));
      }
    }
  }
  return recipe::nearest(tensor, names);
}

bool has_name(const std::string& canonical, std::string_view name) {
  const std::vector<std::string> names = names_of(canonical);
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

StatusOr<std::string> explain(const ModelConfig& config, const recipe::PrecisionPart& precision,
                              const PrecisionPlan& plan, std::string_view tensor) {
  std::vector<std::pair<std::string, std::vector<std::string>>> told;  // text -> the weights that it is about
  std::map<std::string, size_t> places;
  for (const ParamSpec& spec : parameter_specs(config)) {
    if (!has_name(spec.name, tensor)) {
      continue;
    }
    const PlanRow* row = plan.find(spec.name);
    if (row == nullptr) {
      return internal_error("{}: not in the plan", spec.name);
    }
    std::string text = fmt::format("format        {}\n{}", format_word(row->format),
                                   rules_text(config, precision, spec, *row));
    const auto [place, fresh] = places.emplace(text, told.size());
    if (fresh) {
      told.emplace_back(std::move(text), std::vector<std::string>{});
    }
    told[place->second].second.push_back(spec.name);
  }
  if (told.empty()) {
    const auto guess = near_name(config, tensor);
    return usage_error(
        "--explain {}: no weight of this model has this name{} (the table of `accord plan` lists them; "
        "Megatron names such as decoder.layers.0.mlp.linear_fc1 are known too)",
        printable(tensor), guess ? fmt::format("; did you mean {}?", *guess) : "");
  }
  std::string out;
  for (const auto& [text, weights] : told) {
    const std::string& name = weights.front();
    out += fmt::format("{}weight        {}{}\nnames         {}\n{}", out.empty() ? "" : "\n", name,
                       weights.size() > 1 ? fmt::format(", and {} more", weights.size() - 1) : "",
                       fmt::join(names_of(name), "\n              "), text);
  }
  return out;
}

}  // namespace accord::precision
