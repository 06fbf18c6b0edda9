// What a recipe may say and this version cannot do yet: one row each. Building a feature deletes its row.
#include <fmt/format.h>

#include "recipe/schema.hpp"

namespace accord::recipe {
namespace {

struct NotBuilt {
  const char* path;  // of the key
  bool (*asked)(const Recipe&);
  const char* feature;
  const char* remedy;
};

constexpr NotBuilt kNotBuilt[] = {
    {"trainer.expert_tensor_parallel", [](const Recipe& r) { return r.trainer.expert_tensor_parallel != 1; },
     "expert tensor parallelism", "1"},
    {"precision.trainer_forward",
     [](const Recipe& r) { return r.precision.trainer_forward != TrainerForward::kSame; },
     "a trainer forward that differs from the rollout's", "same"},
    {"restart", [](const Recipe& r) { return r.restart != RestartPolicy::kNever; }, "restarting lost workers",
     "never"},
    {"monitor.prometheus", [](const Recipe& r) { return r.monitor.prometheus.has_value(); },
     "the Prometheus exporter", "null"},
};

// The same for keys of a precision config that an enabled matcher uses; `key` is the config's key.
struct NotBuiltInLoop {
  const char* key;
  bool (*asked)(const PrecisionConfig&);
  const char* feature;
  const char* remedy;
};

constexpr NotBuiltInLoop kNotBuiltInLoop[] = {
    {"scope",
     [](const PrecisionConfig& c) {
       return c.format == WeightFormat::kNVFP4 && c.scope == ScaleScope::kTensor;
     },
     "one activation scale per batch, under which a token's result depends on its neighbours,", "token"},
    {"fast_math", [](const PrecisionConfig& c) { return c.fast_math; }, "fast math", "false"},
};

bool used_by_a_matcher(const PrecisionConfig& config, const PrecisionPart& precision) {
  for (const PrecisionMatcher& matcher : precision.matchers) {
    if (matcher.enabled && matcher.config == config.name) {
      return true;
    }
  }
  return false;
}

Problem refuse(std::string path, const char* feature, const char* remedy, const Findings& findings) {
  const Location location = findings.location_of(path);
  return {location, std::move(path),
          fmt::format("{} is not built in this version (use {})", feature, remedy)};
}

}  // namespace

std::vector<Problem> find_not_built(const Recipe& recipe, const Findings& findings) {
  std::vector<Problem> refused;
  for (const NotBuilt& row : kNotBuilt) {
    if (row.asked(recipe)) {
      refused.push_back(refuse(row.path, row.feature, row.remedy, findings));
    }
  }
  for (const PrecisionConfig& config : recipe.precision.configs) {
    if (!used_by_a_matcher(config, recipe.precision)) {
      continue;
    }
    for (const NotBuiltInLoop& row : kNotBuiltInLoop) {
      if (row.asked(config)) {
        refused.push_back(refuse(fmt::format("precision.configs.{}.{}", config.name, row.key), row.feature,
                                 row.remedy, findings));
      }
    }
  }
  return refused;
}

}  // namespace accord::recipe
