#include "recipe/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "recipe/names.hpp"

namespace accord::recipe {
namespace {

using std::string_view;

constexpr const char* kKey = "precision.from_environment";

constexpr const char* kBackward = "NVTE_BACKWARD_OVERRIDE";
constexpr std::array kScopes = {"NVTE_NVFP4_ROW_SCALED_ACTIVATION",
                                "SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION"};
constexpr const char* kNo2d = "NVTE_NVFP4_DISABLE_2D_QUANTIZATION";
constexpr const char* kNoHadamard = "NVTE_NVFP4_DISABLE_RHT";
constexpr const char* kNoStochastic = "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING";
constexpr const char* kFastMath = "NVTE_USE_FAST_MATH";
constexpr std::array kNoFastMath = {"FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH",
                                    "TRTLLM_DISABLE_FP4_QUANT_FAST_MATH"};
constexpr const char* kFourOverSix = "NVTE_NVFP4_4OVER6";
constexpr const char* kUse256 = "NVTE_NVFP4_4OVER6_E4M3_USE_256";
constexpr std::array kErrorMode = {"NVTE_NVFP4_4OVER6_ERR_MODE", "FLASHINFER_NVFP4_4OVER6_ERR_MODE"};
constexpr std::array kErrorFastMath = {"NVTE_NVFP4_4OVER6_ERR_USE_FAST_MATH",
                                       "FLASHINFER_NVFP4_4OVER6_ERR_USE_FAST_MATH"};
constexpr const char* kEngineFourOverSix = "FLASHINFER_NVFP4_4OVER6";
constexpr const char* kEngineUse256 = "FLASHINFER_NVFP4_4OVER6_E4M3_USE_256";

std::vector<const char*> known_variables() {
  std::vector<const char*> known = {kBackward,    kNo2d,   kNoHadamard,        kNoStochastic, kFastMath,
                                    kFourOverSix, kUse256, kEngineFourOverSix, kEngineUse256};
  for (const auto& list : {kScopes, kNoFastMath, kErrorMode, kErrorFastMath}) {
    known.insert(known.end(), list.begin(), list.end());
  }
  return known;
}

// Bit 0: weights, bit 1: activations.
unsigned sides(FourOverSix value) {
  switch (value) {
    case FourOverSix::kNone:
      return 0;
    case FourOverSix::kWeights:
      return 1;
    case FourOverSix::kActivations:
      return 2;
    case FourOverSix::kAll:
      return 3;
  }
  return 0;
}

class Resolver {
 public:
  Resolver(const Environment& environment, PrecisionPart& precision, Findings& findings)
      : environment_(environment), precision_(precision), findings_(findings) {}

  void apply() {
    if (const auto backward = word<BackwardMode>(kBackward, {{"high_precision", BackwardMode::kHighPrecision},
                                                             {"dequantized", BackwardMode::kDequantized}})) {
      set(kBackward, "precision.backward", precision_.backward, *backward);
    }
    must_be(kNoHadamard, true, "a random Hadamard transform");
    must_be(kNoStochastic, true, "stochastic rounding");
    for (const char* name : kErrorFastMath) {
      must_be(name, false, "an approximate four-over-six error");
    }
    for (PrecisionConfig& config : precision_.configs) {
      if (config.format == WeightFormat::kNVFP4) {
        apply_nvfp4(config);
      }
    }
  }

  bool has_nvfp4() const {
    return std::any_of(precision_.configs.begin(), precision_.configs.end(),
                       [](const PrecisionConfig& config) { return config.format == WeightFormat::kNVFP4; });
  }

 private:
  void apply_nvfp4(PrecisionConfig& config) {
    const std::string path = fmt::format("precision.configs.{}", config.name);
    std::optional<Said<ScaleScope>> scope;
    for (const char* name : kScopes) {
      if (const auto on = flag(name)) {
        say(scope, name, *on ? ScaleScope::kToken : ScaleScope::kTensor);
      }
    }
    put(scope, path + ".scope", config.scope);
    if (const auto on = flag(kNo2d)) {
      set(kNo2d, path + ".layout", config.layout, *on ? ScaleLayout::k1x16 : ScaleLayout::k16x16);
    }
    std::optional<Said<bool>> fast;
    if (const auto on = flag(kFastMath)) {
      say(fast, kFastMath, *on);
    }
    for (const char* name : kNoFastMath) {
      if (const auto on = flag(name)) {
        say(fast, name, !*on);
      }
    }
    put(fast, path + ".fast_math", config.fast_math);
    apply_four_over_six(config, path);
  }

  void apply_four_over_six(PrecisionConfig& config, const std::string& path) {
    if (const auto scope = four_over_six_word(kFourOverSix)) {
      set(kFourOverSix, path + ".four_over_six", config.four_over_six, *scope);
    }
    std::optional<Said<FourOverSixError>> error;
    for (const char* name : kErrorMode) {
      if (const auto mode = word<FourOverSixError>(
              name, {{"MAE", FourOverSixError::kMae}, {"MSE", FourOverSixError::kMse}})) {
        say(error, name, *mode);
      }
    }
    put(error, path + ".four_over_six_error", config.four_over_six_error);

    const unsigned on = sides(config.four_over_six);
    const bool activations = (on & 2U) != 0;
    if (const auto wide = four_over_six_word(kUse256); wide && on != 0) {
      const unsigned both = sides(*wide) & on;
      if (both != 0 && both != on) {
        fail(fmt::format(
            "{}={}: one range serves all sides of four over six ({}) here (set it to none or all)", kUse256,
            name_of(*wide), name_of(config.four_over_six)));
      } else {
        set(kUse256, path + ".four_over_six_range", config.four_over_six_range,
            both != 0 ? int64_t{256} : int64_t{448});
      }
    }
    if (const auto engine = flag(kEngineFourOverSix); engine && *engine != activations) {
      fail(
          fmt::format("{}={:d}: contradicts four_over_six: {} of {} (the engine's quantizer is that of "
                      "activations; make them agree)",
                      kEngineFourOverSix, *engine, name_of(config.four_over_six), path));
    }
    const bool wide = config.four_over_six_range == 256;
    if (const auto engine = flag(kEngineUse256); engine && activations && *engine != wide) {
      fail(fmt::format("{}={:d}: contradicts four_over_six_range: {} of {} (make them agree)", kEngineUse256,
                       *engine, config.four_over_six_range, path));
    }
  }

  // What variables said so far of one setting.
  template <class T>
  struct Said {
    const char* name;
    T value;
  };

  template <class T>
  void say(std::optional<Said<T>>& said, const char* name, T value) {
    if (!said) {
      said = Said<T>{name, value};
    } else if (said->value != value) {
      fail(fmt::format("{}={} contradicts {}={} (make them agree)", name, *value_of(name), said->name,
                       *value_of(said->name)));
    }
  }

  template <class T>
  void put(const std::optional<Said<T>>& said, const std::string& path, T& out) {
    if (said) {
      set(said->name, path, out, said->value);
    }
  }

  template <class T>
  void set(const char* name, const std::string& path, T& out, T value) {
    if (out != value && findings_.wrote(path)) {
      findings_.add(
          findings_.location_of(path), path,
          fmt::format("contradicts {}={} (unset the variable, or make them agree)", name, *value_of(name)));
      return;
    }
    out = value;
  }

  void must_be(const char* name, bool wanted, string_view feature) {
    if (const auto on = flag(name); on && *on != wanted) {
      fail(fmt::format("{}={:d}: asks for {}, which this program does not have (set it to {:d})", name, *on,
                       feature, wanted));
    }
  }

  // Empty counts as not set.
  std::optional<string_view> value_of(string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? std::nullopt
                                                                : std::optional<string_view>(found->second);
  }

  template <class T>
  std::optional<T> word(const char* name, const std::vector<std::pair<string_view, T>>& words) {
    const auto value = value_of(name);
    if (!value) {
      return std::nullopt;
    }
    std::vector<string_view> known;
    for (const auto& [text, result] : words) {
      if (text == *value) {
        return result;
      }
      known.push_back(text);
    }
    fail(fmt::format("{}='{}': must be one of: {}", name, *value, fmt::join(known, ", ")));
    return std::nullopt;
  }

  std::optional<bool> flag(const char* name) { return word<bool>(name, {{"0", false}, {"1", true}}); }

  std::optional<FourOverSix> four_over_six_word(const char* name) {
    const auto& table = Names<FourOverSix>::table;
    return word<FourOverSix>(name, {table.begin(), table.end()});
  }

  void fail(std::string rule) { findings_.add(findings_.location_of(kKey), kKey, std::move(rule)); }

  const Environment& environment_;
  PrecisionPart& precision_;
  Findings& findings_;
};

}  // namespace

bool concerns_precision(string_view name) {
  const std::vector<const char*> known = known_variables();
  return name.starts_with("NVTE_NVFP4_") || name.starts_with("FLASHINFER_NVFP4_") ||
         std::find(known.begin(), known.end(), name) != known.end();
}

Environment precision_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != string_view::npos && equals + 1 < text.size() &&
        concerns_precision(text.substr(0, equals))) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

void resolve_environment(const Environment& environment, PrecisionPart& precision, Findings& findings,
                         std::vector<std::string>& notes) {
  const bool asked = std::exchange(precision.from_environment, false);
  const std::vector<const char*> known = known_variables();
  std::vector<std::string> set;
  for (const auto& [name, value] : environment) {
    if (!value.empty() && std::find(known.begin(), known.end(), name) != known.end()) {
      set.push_back(fmt::format("{}={}", name, value));
    } else if (asked && !value.empty() && concerns_precision(name)) {
      const auto guess = nearest(name, {known.begin(), known.end()});
      notes.push_back(fmt::format("{}: {}: unknown variable, ignored{}", kKey, name,
                                  guess ? fmt::format(" (did you mean {}?)", *guess) : ""));
    }
  }
  if (set.empty()) {
    if (asked) {
      notes.push_back(fmt::format("{}: none of the variables that it reads is set", kKey));
    }
    return;
  }
  if (!asked) {
    notes.push_back(
        fmt::format("ignored environment variables (precision.from_environment: true reads them): {}",
                    fmt::join(set, ", ")));
    return;
  }
  Resolver resolver(environment, precision, findings);
  resolver.apply();
  notes.push_back(fmt::format("{}: read {}{}", kKey, fmt::join(set, ", "),
                              resolver.has_nvfp4() ? "" : " (those of NVFP4 do nothing: no nvfp4 config)"));
}

}  // namespace accord::recipe
