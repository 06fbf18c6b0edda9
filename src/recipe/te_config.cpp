#include "recipe/te_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "base/files.hpp"

namespace accord::recipe {
namespace {

using std::string_view;

// The truth values of YAML 1.1, which these files are written in.
constexpr std::array<string_view, 9> kTrue = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
constexpr std::array<string_view, 9> kFalse = {"false", "False", "FALSE", "no", "No",
                                               "NO",    "off",   "Off",   "OFF"};

void read_truth(MapReader& map, string_view key, bool& out) {
  const Node* node = map.raw(key);
  if (node == nullptr) {
    return;
  }
  const bool plain = node->kind == Node::Kind::kScalar && !node->quoted;
  if (plain && std::find(kTrue.begin(), kTrue.end(), node->text) != kTrue.end()) {
    out = true;
  } else if (plain && std::find(kFalse.begin(), kFalse.end(), node->text) != kFalse.end()) {
    out = false;
  } else {
    map.fail(key, "must be true or false");
  }
}

// A word of a closed choice; null is an absent one.
std::optional<std::string> read_word(MapReader& map, string_view key) {
  const Node* node = map.raw(key);
  if (node == nullptr || node->kind == Node::Kind::kNull) {
    return std::nullopt;
  }
  std::string word;
  map.text(key, word);
  return word.empty() ? std::nullopt : std::optional(word);
}

struct Autocast {
  PrecisionConfig config;
  bool over_bf16_layers = false;
};

bool same_numbers(const Autocast& a, const Autocast& b) {
  return a.config == b.config && a.over_bf16_layers == b.over_bf16_layers;
}

// One training_recipe or evaluation_recipe.
Autocast read_autocast(MapReader map) {
  Autocast result;
  const std::optional<std::string> fp8 = read_word(map, "fp8_quantization_recipe");
  const std::optional<std::string> fp4 = read_word(map, "fp4_quantization_recipe");
  const std::optional<std::string> format = read_word(map, "fp8_format");
  if (fp8 && *fp8 != "mxfp8") {
    map.fail("fp8_quantization_recipe",
             fmt::format("'{}' is no format of this program (use mxfp8, or leave it out for BF16)", *fp8));
  }
  if (fp4 && *fp4 != "nvfp4") {
    map.fail("fp4_quantization_recipe",
             fmt::format("'{}' is no format of this program (use nvfp4, or leave it out for BF16)", *fp4));
  }
  if (fp8 && fp4) {
    map.fail("fp4_quantization_recipe", "excludes fp8_quantization_recipe (keep one)");
  }
  if (format && *format != "e4m3" && *format != "hybrid") {
    map.fail("fp8_format", fmt::format("must be e4m3 or hybrid, is '{}'", *format));
  }
  if (read_word(map, "custom_recipe_factory")) {
    map.fail("custom_recipe_factory", "asks for code of its own, which is never run (remove it)");
  }
  bool over_quantized = true;
  read_truth(map, "override_quantized_autocast", over_quantized);
  if (!over_quantized) {
    map.fail("override_quantized_autocast",
             "false leaves the weights to the global recipe, which a matcher cannot say here (remove it, and "
             "give its matchers the config of the global recipe)");
  }
  read_truth(map, "override_nonquantized_autocast", result.over_bf16_layers);
  bool only_tensor_parallel = false;  // of per-tensor scales over shards, which neither format has
  read_truth(map, "tp_only_amax_red", only_tensor_parallel);
  map.finish();
  if (fp8) {
    result.config.format = WeightFormat::kMXFP8;
    result.config.e5m2_gradients = format == "hybrid";
  } else if (fp4) {
    result.config.format = WeightFormat::kNVFP4;
  }
  return result;
}

// Null is no mapping here, as it is none there.
bool is_mapping(MapReader& map, string_view key, string_view remedy) {
  const Node* node = map.raw(key);
  if (node != nullptr && node->kind == Node::Kind::kMapping) {
    return true;
  }
  map.fail(key, node == nullptr ? fmt::format("required key is missing ({})", remedy)
                                : fmt::format("must be a mapping, is {} ({})", node->kind_name(), remedy));
  return false;
}

Autocast read_params(MapReader map) {
  Autocast training;
  const auto type = read_word(map, "transformer_engine_config_type");
  if (type != "TEQuantizationParams") {
    map.fail("transformer_engine_config_type",
             fmt::format("must be TEQuantizationParams, is {}", type.value_or("missing")));
  }
  if (is_mapping(map, "training_recipe", "{} for BF16")) {
    training = read_autocast(map.map("training_recipe"));
  }
  if (map.has("evaluation_recipe") && is_mapping(map, "evaluation_recipe", "{} for BF16")) {
    const Autocast evaluation = read_autocast(map.map("evaluation_recipe"));
    if (!same_numbers(training, evaluation)) {
      map.fail(
          "evaluation_recipe",
          "differs from training_recipe, but one plan serves training, rollout and evaluation (remove it)");
    }
  }
  map.finish();
  return training;
}

class TeReader {
 public:
  explicit TeReader(Findings& findings) : findings_(findings) {}

  TeConfig read(Node& root) {
    MapReader map(&root, "", findings_);
    if (is_mapping(map, "configs", "the named recipes")) {
      read_named(map, "configs", [&](MapReader entry, const std::string& name) {
        Autocast autocast = read_params(std::move(entry));
        autocast.config.name = name;
        if (autocast.over_bf16_layers) {
          over_bf16_layers_.insert(name);
        }
        result_.configs.push_back(std::move(autocast.config));
      });
    }
    if (is_mapping(map, "matchers", "which modules get which config")) {
      read_named(map, "matchers",
                 [&](MapReader entry, const std::string& name) { read_matcher(std::move(entry), name); });
    }
    map.finish();
    return std::move(result_);
  }

 private:
  template <class Read>
  void read_named(MapReader& outer, string_view key, const Read& read) {
    Node* node = outer.raw(key);
    MapReader map(node, outer.path_of(key), findings_);
    std::set<std::string> seen;
    for (Node::Entry& entry : node->entries) {
      Node* value = map.raw(entry.key);
      if (!seen.insert(entry.key).second) {
        continue;  // finish() reports it
      }
      if (entry.key.empty() || value->kind != Node::Kind::kMapping) {
        map.fail(entry.key, "must be a name with a mapping");
      } else {
        read(MapReader(value, map.path_of(entry.key), findings_), entry.key);
      }
    }
    map.finish();
  }

  void read_matcher(MapReader map, const std::string& name) {
    PrecisionMatcher matcher;
    matcher.name = name;
    matcher.names = MatchNames::kMegatron;
    bool enabled = false;
    read_truth(map, "enabled", enabled);
    const std::optional<std::string> type = read_word(map, "type");
    const std::optional<std::string> pattern = read_word(map, "pattern");
    const std::optional<std::string> config = read_word(map, "config");
    map.finish();
    if (!enabled) {
      result_.disabled.push_back(name);
      return;
    }
    if (!type || *type != "glob") {
      map.fail("type", type ? fmt::format("must be glob, is '{}'", *type) : "required key is missing (glob)");
    }
    if (!pattern) {
      map.fail("pattern", "required key is missing (a glob over module paths, such as \"*.mlp.linear_fc1\")");
    }
    if (!config) {
      map.fail("config", "required key is missing (a name of configs)");
    } else if (!has_config(*config)) {
      map.fail("config", unknown_config(*config));
    }
    matcher.pattern = pattern.value_or("");
    matcher.config = config.value_or("");
    matcher.over_bf16_layers = over_bf16_layers_.contains(matcher.config);
    result_.matchers.push_back(std::move(matcher));
  }

  bool has_config(const std::string& name) const {
    return std::any_of(result_.configs.begin(), result_.configs.end(),
                       [&](const PrecisionConfig& config) { return config.name == name; });
  }

  std::string unknown_config(const std::string& name) const {
    std::vector<std::string> known;
    for (const PrecisionConfig& config : result_.configs) {
      known.push_back(config.name);
    }
    const auto guess = nearest(name, known);
    return fmt::format("no config '{}' in configs ({})", name,
                       guess ? fmt::format("did you mean '{}'?", *guess) : "add it there");
  }

  Findings& findings_;
  TeConfig result_;
  std::set<std::string, std::less<>> over_bf16_layers_;
};

}  // namespace

StatusOr<TeConfig> parse_te_config(std::string_view text, std::string_view source) {
  const std::vector<std::string> sources{std::string(source)};
  Location location;
  StatusOr<Node> root = parse_yaml(text, 0, location);
  if (!root.ok()) {
    return to_status({{location, "", std::string(message_of(root.status()))}}, sources);
  }
  if (root->kind != Node::Kind::kMapping) {
    return to_status({{root->location, "",
                       fmt::format("a precision file is a mapping of configs and matchers, this is {}",
                                   root->kind_name())}},
                     sources);
  }
  Findings findings;
  TeConfig result = TeReader(findings).read(*root);
  if (!findings.problems().empty()) {
    return to_status(findings.problems(), sources);
  }
  return result;
}

size_t resolve_te_config(PrecisionPart& precision, Findings& findings, std::vector<std::string>& notes) {
  if (!precision.te_config_file) {
    return 0;
  }
  constexpr const char* kKey = "precision.te_config_file";
  const std::string path = *std::exchange(precision.te_config_file, std::nullopt);
  const Location location = findings.location_of(kKey);
  const StatusOr<std::string> text = read_file(path, kMaxRecipeBytes);
  StatusOr<TeConfig> file = text.ok() ? parse_te_config(*text, path) : StatusOr<TeConfig>(text.status());
  if (!file.ok()) {
    string_view message = message_of(file.status());
    while (!message.empty()) {
      const size_t end = std::min(message.find('\n'), message.size());
      findings.add(location, kKey, std::string(message.substr(0, end)));
      message.remove_prefix(std::min(end + 1, message.size()));
    }
    return 0;
  }
  for (PrecisionConfig& config : file->configs) {
    const PrecisionConfig* own = precision.find_config(config.name);
    if (own == nullptr) {
      precision.configs.push_back(std::move(config));
    } else if (!(*own == config)) {
      findings.add(findings.location_of(fmt::format("precision.configs.{}", config.name)),
                   fmt::format("precision.configs.{}", config.name),
                   fmt::format("{} has another config of this name (rename this one)", path));
    }
  }
  if (!file->disabled.empty()) {
    notes.push_back(fmt::format("{}: matchers without 'enabled: true' do nothing: {}", path,
                                fmt::join(file->disabled, ", ")));
  }
  const size_t from_file = file->matchers.size();
  precision.matchers.insert(precision.matchers.begin(), std::make_move_iterator(file->matchers.begin()),
                            std::make_move_iterator(file->matchers.end()));
  return from_file;
}

}  // namespace accord::recipe
