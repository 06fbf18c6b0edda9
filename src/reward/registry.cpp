#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reward/reward.hpp"
#include "reward/scorers.hpp"

namespace accord::reward {
namespace {

constexpr ScorerType kTypes[] = {
    {"math_dapo", "+1 or -1: the last 'Answer: ...' line, else the last box, normalized as mathematics",
     make_math_dapo},
    {"math_dapo_integer", "as math_dapo, with labels cut to whole numbers and no boxes",
     make_math_dapo_integer},
    {"math_boxed", "+1 or -1: the last \\boxed{...} of the last 100 characters equals the label exactly",
     make_math_boxed},
    {"gsm8k", "1 or 0: the number after the last '#### '", make_gsm8k},
    {"gsm8k_flexible", "1 or 0: the last number", make_gsm8k_flexible},
    {"exact", "1 or 0: the whole response without surrounding space", make_exact},
};

}  // namespace

Status Scorer::check_label(std::string_view) const { return absl::OkStatus(); }

std::span<const ScorerType> scorer_types() { return kTypes; }

StatusOr<std::unique_ptr<Scorer>> make_scorer(std::string_view type) {
  std::vector<std::string_view> names;
  for (const ScorerType& candidate : kTypes) {
    if (candidate.name == type) {
      return candidate.make();
    }
    names.push_back(candidate.name);
  }
  return recipe_error("reward type '{}' does not exist (use one of: {})", type, fmt::join(names, ", "));
}

}  // namespace accord::reward
