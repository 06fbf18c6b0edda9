#include "recipe/miles_args.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <utility>

#include "recipe/environment.hpp"
#include "recipe/miles_flags.hpp"
#include "recipe/miles_variables.hpp"
#include "recipe/schema.hpp"
#include "recipe/te_config.hpp"

namespace accord::recipe {
namespace {

using std::string_view;

constexpr const char* kGenerated = "generated";  // names the imported recipe in errors that nobody sees

// Keys with their YAML values, as nested mappings in the order in which they were set.
class Tree {
 public:
  void set(string_view path, std::string value) {
    const size_t dot = path.find('.');
    Tree& child = at(path.substr(0, dot));
    if (dot == string_view::npos) {
      child.value_ = std::move(value);
    } else {
      child.set(path.substr(dot + 1), std::move(value));
    }
  }
  std::string yaml(size_t depth = 0) const {
    std::string out;
    for (const auto& [key, child] : children_) {
      out += fmt::format("{}{}:{}\n{}", std::string(2 * depth, ' '), key,
                         child.children_.empty() ? " " + child.value_ : "", child.yaml(depth + 1));
    }
    return out;
  }

 private:
  Tree& at(string_view key) {
    for (auto& [name, child] : children_) {
      if (name == key) {
        return child;
      }
    }
    return children_.emplace_back(std::string(key), Tree()).second;
  }

  std::vector<std::pair<std::string, Tree>> children_;
  std::string value_;
};

class Importer {
 public:
  Importer(MilesArguments arguments, MilesVariables variables, string_view source)
      : arguments_(std::move(arguments)), variables_(std::move(variables)), source_(source) {}

  StatusOr<MilesImport> run() {
    name_run();
    for (const MilesFlag& known : miles_flags()) {
      if (!known.key.empty() && arguments_.given(known.flag)) {
        tree_.set(known.key, known.kind == MilesKind::kNumber ? *arguments_.given(known.flag)
                                                              : quoted_yaml(*arguments_.given(known.flag)));
      }
    }
    ACCORD_RETURN_IF_ERROR(import_prompts());
    ACCORD_RETURN_IF_ERROR(import_objective());
    ACCORD_RETURN_IF_ERROR(import_sizes());
    ACCORD_RETURN_IF_ERROR(import_evaluation());
    ACCORD_RETURN_IF_ERROR(import_debugging());
    PrecisionPart precision;
    ACCORD_RETURN_IF_ERROR(import_formats(precision));
    ACCORD_RETURN_IF_ERROR(import_layers(precision));
    ACCORD_RETURN_IF_ERROR(import_patterns(precision));
    ACCORD_RETURN_IF_ERROR(import_environment(precision));
    result_.yaml = tree_.yaml() + precision_to_yaml(precision);
    ACCORD_RETURN_IF_ERROR(check());
    if (!arguments_.changing().empty()) {
      result_.notes.push_back(
          fmt::format("not imported, may change results: {}", fmt::join(arguments_.changing(), " ")));
    }
    if (!arguments_.unknown().empty()) {
      result_.notes.push_back(fmt::format("not imported: {}", fmt::join(arguments_.unknown(), " ")));
    }
    return std::move(result_);
  }

 private:
  void name_run() {
    string_view name = source_;
    name = name.substr(name.rfind('/') + 1);
    name = name.substr(0, name.find('.'));
    std::string clean;
    for (const char c : name) {
      clean += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ? c : '-';
    }
    tree_.set("run.name", quoted_yaml(clean.empty() ? "imported" : clean));
  }

  Status import_prompts() {
    const auto variables = arguments_.given("--apply-chat-template-kwargs");
    if (variables) {
      const bool object = variables->starts_with('{') && variables->ends_with('}');
      if (!object || variables->find('\n') != std::string::npos) {
        return arguments_.fail("--apply-chat-template-kwargs", "must be a JSON object on one line, is '{}'",
                               printable_ascii(*variables));
      }
      tree_.set("data.chat_template_kwargs", *variables);
    }
    if (!arguments_.given("--apply-chat-template") && arguments_.given("--prompt-data")) {
      tree_.set("data.chat_template", "none");
      result_.notes.emplace_back(
          "--apply-chat-template is missing: prompts are raw text there, so data.chat_template is none");
    }
    return absl::OkStatus();
  }

  Status import_objective() {
    if (const auto reward = arguments_.given("--rm-type")) {
      if (*reward == "dapo") {
        tree_.set("reward.type", "math_dapo_integer");
      } else {
        result_.notes.push_back(
            fmt::format("--rm-type {}: choose reward.type (docs/migrating.md)", printable_ascii(*reward)));
      }
    }
    if (arguments_.given("--adam-beta1") || arguments_.given("--adam-beta2")) {
      tree_.set("trainer.optimizer.betas",
                fmt::format("[{}, {}]", arguments_.given("--adam-beta1").value_or("0.9"),
                            arguments_.given("--adam-beta2").value_or("0.999")));
    }
    if (arguments_.given("--advantage-estimator")) {
      tree_.set("algorithm.aggregate",
                arguments_.given("--calculate-per-token-loss") ? "token-mean" : "seq-mean-token-mean");
    }
    ACCORD_RETURN_IF_ERROR(import_correction());
    ACCORD_RETURN_IF_ERROR(import_filter());
    if (arguments_.given("--use-routing-replay") || arguments_.given("--use-rollout-routing-replay")) {
      tree_.set("algorithm.routing_replay", "true");
    }
    if (const auto stops = arguments_.values("--rollout-stop"); !stops.empty()) {
      std::vector<std::string> quoted;
      std::transform(stops.begin(), stops.end(), std::back_inserter(quoted), quoted_yaml);
      tree_.set("rollout.stop", fmt::format("[{}]", fmt::join(quoted, ", ")));
    }
    return import_reference();
  }

  // Weights are cut to 0..2 (docs/recipe.md).
  Status import_correction() {
    const bool used = arguments_.given("--use-tis").has_value();
    if (used) {
      tree_.set("algorithm.importance_correction", "tis");
    }
    for (const auto& [flag, bound] :
         {std::pair{"--tis-clip", 2.0}, {"--tis-clip-high", 2.0}, {"--tis-clip-low", 0.0}}) {
      const auto value = arguments_.given(flag);
      if (value && !used) {
        result_.notes.push_back(fmt::format("{}: nothing without --use-tis", flag));
      } else if (value && parse_real(*value) != bound) {
        return arguments_.fail(flag, "is {}; weights are cut to 0..2 here (use {}, or leave it out)", *value,
                               bound);
      }
    }
    return absl::OkStatus();
  }

  Status import_filter() {
    constexpr const char* kFlag = "--dynamic-sampling-filter-path";
    const auto filter = arguments_.given(kFlag);
    if (filter && filter->ends_with("check_reward_nonzero_std")) {
      tree_.set("algorithm.filter_zero_std", "true");
      result_.notes.push_back(
          fmt::format("{}: there further groups replace those left out, here the step is smaller", kFlag));
    } else if (filter) {
      result_.notes.push_back(
          fmt::format("not imported, may change results: {} {}", kFlag, printable_ascii(*filter)));
    }
    return absl::OkStatus();
  }

  Status import_debugging() {
    const bool rollout_only = arguments_.given("--debug-rollout-only").has_value();
    const bool loads = arguments_.given("--load-debug-rollout-data").has_value();
    const bool train_only = loads || arguments_.given("--debug-train-only").has_value();
    if (rollout_only && train_only) {
      return arguments_.fail("--debug-rollout-only", "excludes {} (keep one)",
                             loads ? "--load-debug-rollout-data" : "--debug-train-only");
    }
    if (rollout_only || train_only) {
      tree_.set("debug.mode", rollout_only ? "rollout_only" : "train_only");
    }
    if (arguments_.given("--save-debug-rollout-data")) {
      tree_.set("debug.dump_batches", "true");
    }
    if (loads) {
      result_.notes.emplace_back(
          "--load-debug-rollout-data: debug.load_batches reads batches of this program only");
    }
    return absl::OkStatus();
  }

  Status import_reference() {
    const auto coefficient = arguments_.given("--kl-loss-coef");
    const auto kind = arguments_.given("--kl-loss-type");
    if (!arguments_.given("--use-kl-loss")) {
      if (coefficient || kind) {
        result_.notes.emplace_back("--kl-loss-coef, --kl-loss-type: nothing without --use-kl-loss");
      }
      return absl::OkStatus();
    }
    constexpr string_view kKinds[] = {"k1", "k2", "k3", "low_var_kl"};
    if (kind && std::find(std::begin(kKinds), std::end(kKinds), *kind) == std::end(kKinds)) {
      return arguments_.fail("--kl-loss-type", "must be {}, is '{}'", fmt::join(kKinds, " or "),
                             printable_ascii(*kind));
    }
    tree_.set("algorithm.reference_kl", "true");
    tree_.set("algorithm.kl_coefficient", coefficient.value_or("0.0"));
    if (kind) {
      tree_.set("algorithm.kl_estimator", *kind == "low_var_kl" ? "low-variance" : *kind);
    }
    return absl::OkStatus();
  }

  // A whole number above 0.
  StatusOr<std::optional<int64_t>> count(string_view flag) const {
    const auto text = arguments_.given(flag);
    if (!text) {
      return std::optional<int64_t>();
    }
    const std::optional<int64_t> value = parse_integer(*text);
    if (!value || *value < 1 || *value > 1'000'000'000) {
      return arguments_.fail(flag, "must be a whole number above 0, is '{}'", printable_ascii(*text));
    }
    return value;
  }

  Status import_sizes() {
    ACCORD_ASSIGN_OR_RETURN(const auto nodes, count("--actor-num-nodes"));
    ACCORD_ASSIGN_OR_RETURN(const auto devices, count("--actor-num-gpus-per-node"));
    if (devices) {
      tree_.set("trainer.workers", fmt::format("{}", *devices * nodes.value_or(1)));
    }
    ACCORD_ASSIGN_OR_RETURN(std::optional<int64_t> updates, count("--num-steps-per-rollout"));
    ACCORD_ASSIGN_OR_RETURN(const auto batch, count("--global-batch-size"));
    ACCORD_ASSIGN_OR_RETURN(const auto prompts, count("--rollout-batch-size"));
    ACCORD_ASSIGN_OR_RETURN(const auto samples, count("--n-samples-per-prompt"));
    if (batch && prompts) {
      const int64_t all = *prompts * samples.value_or(1);
      if (all % *batch != 0 || (updates && *updates != all / *batch)) {
        return arguments_.fail("--global-batch-size",
                               "{} does not cut the {} samples of a rollout into {} (make them agree)",
                               *batch, all, updates ? fmt::format("{} updates", *updates) : "equal updates");
      }
      updates = all / *batch;
    }
    if (updates) {
      tree_.set("trainer.updates_per_step", fmt::format("{}", *updates));
    }
    return absl::OkStatus();
  }

  Status import_evaluation() {
    const std::vector<std::string> sets = arguments_.values("--eval-prompt-data");
    if (sets.size() % 2 != 0) {
      return arguments_.fail("--eval-prompt-data", "takes pairs of a name and a path, {} words given",
                             sets.size());
    }
    ACCORD_ASSIGN_OR_RETURN(const auto every, count("--eval-interval"));
    ACCORD_ASSIGN_OR_RETURN(const auto samples, count("--n-samples-per-eval-prompt"));
    if (sets.empty() && (every || samples)) {
      result_.notes.emplace_back(
          "--eval-interval, --n-samples-per-eval-prompt: nothing without --eval-prompt-data");
    }
    if (!sets.empty() && !every) {
      result_.notes.emplace_back(
          "--eval-prompt-data: there nothing is evaluated without --eval-interval; here it is");
    }
    constexpr std::pair<const char*, const char*> kEvalSettings[] = {
        {"--eval-temperature", "temperature"},
        {"--eval-top-p", "top_p"},
        {"--eval-max-response-len", "max_response_tokens"}};
    for (const auto& [flag, key] : kEvalSettings) {
      if (sets.empty() && arguments_.given(flag)) {
        result_.notes.push_back(fmt::format("{}: nothing without --eval-prompt-data", flag));
      }
    }
    std::vector<std::string> entries;
    for (size_t i = 0; i + 1 < sets.size(); i += 2) {
      std::string entry = fmt::format("{{name: {}, path: {}", quoted_yaml(sets[i]), quoted_yaml(sets[i + 1]));
      entry += every ? fmt::format(", every: {}", *every) : "";
      entry += samples ? fmt::format(", samples: {}", *samples) : "";
      for (const auto& [flag, key] : kEvalSettings) {
        const auto value = arguments_.given(flag);
        entry += value ? fmt::format(", {}: {}", key, *value) : "";
      }
      entries.push_back(entry + "}");
    }
    if (!entries.empty()) {
      tree_.set("data.eval", fmt::format("[{}]", fmt::join(entries, ", ")));
    }
    return absl::OkStatus();
  }

  Status import_formats(PrecisionPart& precision) {
    if (arguments_.given("--fp16")) {
      return arguments_.fail("--fp16", "float16 is no format of this program (use bf16)");
    }
    if (const auto engine = arguments_.given("--transformer-impl");
        engine && *engine != "transformer_engine") {
      return arguments_.fail("--transformer-impl", "must be transformer_engine, is '{}'",
                             printable_ascii(*engine));
    }
    const auto fp8 = arguments_.given("--fp8-format");
    const auto fp4 = arguments_.given("--fp4-format");
    if (fp8 && fp4) {
      return arguments_.fail("--fp4-format", "excludes --fp8-format (keep one)");
    }
    ACCORD_RETURN_IF_ERROR(check_pair("--fp8-format", {"e4m3", "hybrid"}, "--fp8-recipe", "mxfp8"));
    ACCORD_RETURN_IF_ERROR(check_pair("--fp4-format", {"e2m1"}, "--fp4-recipe", "nvfp4"));
    if (const auto file = arguments_.given("--te-precision-config-file")) {
      if (!fp8 && !fp4) {
        return arguments_.fail(
            "--te-precision-config-file",
            "without --fp8-format or --fp4-format Megatron quantizes next to nothing of what the file "
            "says (give one; or write te_config_file into a recipe to have all of it)");
      }
      precision.te_config_file = *file;
      Findings findings;
      resolve_te_config(precision, findings, result_.notes);
      if (!findings.problems().empty()) {
        return arguments_.fail("--te-precision-config-file", "{}", findings.problems().front().rule);
      }
    }
    if (fp8) {
      add_global(precision, "mxfp8", WeightFormat::kMXFP8, *fp8 == "hybrid", "*");
      precision.backward = BackwardMode::kQuantized;
    } else if (fp4) {
      add_global(precision, "nvfp4", WeightFormat::kNVFP4, false, "*.mlp.experts.*");
      result_.notes.emplace_back(
          "--fp4-recipe nvfp4: the default covers the routed experts, which is what the NVFP4 converter "
          "there "
          "quantizes; unset NVTE_BACKWARD_OVERRIDE: high_precision");
    }
    return absl::OkStatus();
  }

  Status check_pair(string_view format, const std::vector<string_view>& formats, string_view recipe,
                    string_view recipes) {
    if (arguments_.given(format).has_value() != arguments_.given(recipe).has_value()) {
      const string_view have = arguments_.given(format) ? format : recipe;
      return arguments_.fail(have, "needs {} as well (give both or neither)",
                             arguments_.given(format) ? recipe : format);
    }
    if (arguments_.given(format) &&
        std::find(formats.begin(), formats.end(), *arguments_.given(format)) == formats.end()) {
      return arguments_.fail(format, "must be {}, is '{}'", fmt::join(formats, " or "),
                             printable_ascii(*arguments_.given(format)));
    }
    if (arguments_.given(recipe) && *arguments_.given(recipe) != recipes) {
      return arguments_.fail(recipe, "must be {}, is '{}' (no other scaling exists here)", recipes,
                             printable_ascii(*arguments_.given(recipe)));
    }
    return absl::OkStatus();
  }

  // What no matcher of a precision file decides.
  static void add_global(PrecisionPart& precision, string_view name, WeightFormat format, bool hybrid,
                         const char* pattern) {
    PrecisionConfig config;
    config.name = name;
    config.format = format;
    config.e5m2_gradients = hybrid;
    const PrecisionConfig* same = precision.find_config(name);
    if (same == nullptr || !(*same == config)) {
      while (precision.find_config(config.name) != nullptr) {
        config.name += "-global";
      }
      precision.configs.push_back(config);
    }
    PrecisionMatcher matcher;
    matcher.name = "global";
    const auto taken = [&](const std::string& wanted) {
      return std::any_of(precision.matchers.begin(), precision.matchers.end(),
                         [&](const PrecisionMatcher& other) { return other.name == wanted; });
    };
    while (taken(matcher.name)) {
      matcher.name += "-default";
    }
    matcher.pattern = pattern;
    matcher.config = config.name;
    precision.matchers.push_back(std::move(matcher));
  }

  Status import_layers(PrecisionPart& precision) {
    constexpr const char* kStart = "--num-layers-at-start-in-bf16";
    constexpr const char* kEnd = "--num-layers-at-end-in-bf16";
    const bool asked = arguments_.given("--first-last-layers-bf16").has_value();
    const auto read = [&](const char* flag, LayerShare& share) -> Status {
      const auto text = arguments_.given(flag);
      const auto count = text ? parse_integer(*text) : std::optional<int64_t>(asked ? 1 : 0);
      if (!count || *count < 0 || *count > 1'000'000) {
        return arguments_.fail(flag, "must be a number of layers, is '{}'",
                               printable_ascii(text.value_or("")));
      }
      share = {false, static_cast<double>(*count)};
      return absl::OkStatus();
    };
    ACCORD_RETURN_IF_ERROR(read(kStart, precision.bf16_layers.first));
    ACCORD_RETURN_IF_ERROR(read(kEnd, precision.bf16_layers.last));
    if (!asked && (precision.bf16_layers.first.value > 0 || precision.bf16_layers.last.value > 0)) {
      result_.notes.emplace_back(
          "--first-last-layers-bf16 is missing: there only the converter keeps these layers in BF16, here "
          "the "
          "trainer does too");
    }
    return absl::OkStatus();
  }

  Status import_patterns(PrecisionPart& precision) {
    for (const char* flag : {"--extra-high-precision-layers-hf", "--extra-high-precision-layers-megatron"}) {
      for (const std::string& value : arguments_.values(flag)) {
        // One quoted value may hold several patterns.
        string_view rest = value;
        while (!rest.empty()) {
          const size_t end = std::min(rest.find_first_of(" \t\n"), rest.size());
          const std::string pattern(rest.substr(0, end));
          rest.remove_prefix(std::min(end + 1, rest.size()));
          if (pattern.find_first_of("*?[") != std::string::npos) {
            return arguments_.fail(flag,
                                   "'{}': patterns there are plain parts of names, which never hold * ? or [",
                                   printable_ascii(pattern));
          }
          auto& patterns = precision.high_precision;
          if (!pattern.empty() && std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) {
            patterns.push_back(pattern);
          }
        }
      }
    }
    return absl::OkStatus();
  }

  Status import_environment(PrecisionPart& precision) {
    if (variables_.environment().empty()) {
      return absl::OkStatus();
    }
    precision.from_environment = true;
    Findings findings;
    resolve_environment(variables_.environment(), precision, findings, result_.notes);
    if (!findings.problems().empty()) {
      const std::string& rule = findings.problems().front().rule;
      const int32_t line = variables_.line_in(rule);
      return line > 0 ? recipe_error("{}:{}: {}", source_, line, rule)
                      : recipe_error("{}: {}", source_, rule);
    }
    return absl::OkStatus();
  }

  // The recipe loads, apart from the keys that the arguments leave open.
  Status check() {
    std::vector<std::string> fill;
    std::vector<std::string> missing;
    for (const auto& [flag, key] : {std::pair{"--hf-checkpoint", "model.checkpoint"},
                                    {"--prompt-data", "data.train.path"},
                                    {"--rm-type", "reward.type"}}) {
      if (!has_key(key, flag)) {
        missing.emplace_back(key);
        fill.push_back(fmt::format("{}=exact", key));
      }
    }
    if (arguments_.given("--debug-train-only") || arguments_.given("--load-debug-rollout-data")) {
      missing.emplace_back("debug.load_batches");
      fill.emplace_back("debug.load_batches=batches");
    }
    const StatusOr<Inspection> loaded = inspect_recipe(result_.yaml, kGenerated, fill, {});
    if (!loaded.ok()) {
      return recipe_error("{}", fmt::join(explained(message_of(loaded.status())), "\n"));
    }
    if (!loaded->refused.ok()) {
      for (std::string& line : explained(message_of(loaded->refused))) {
        result_.notes.push_back(std::move(line));
      }
    }
    if (!missing.empty()) {
      result_.notes.push_back(fmt::format("fill in: {}", fmt::join(missing, ", ")));
    }
    return absl::OkStatus();
  }

  // Lines about the generated recipe, which nobody wrote, as lines about the flags that its keys come from.
  std::vector<std::string> explained(string_view message) const {
    std::vector<std::string> out;
    while (!message.empty()) {
      string_view line = message.substr(0, message.find('\n'));
      message.remove_prefix(std::min(line.size() + 1, message.size()));
      if (!line.starts_with(kGenerated)) {
        out.emplace_back(line);
        continue;
      }
      line.remove_prefix(std::min(line.find(": ") + 2, line.size()));  // generated:LINE:COLUMN
      const string_view flag = arguments_.flag_of(line.substr(0, line.find(": ")));
      out.push_back(flag.empty()
                        ? fmt::format("{}: {} (in the recipe that the arguments amount to)", source_, line)
                        : fmt::format("{}:{}: {}: {}", source_, arguments_.line_of(flag), flag, line));
    }
    return out;
  }

  bool has_key(string_view key, string_view flag) const {
    return key == "reward.type" ? arguments_.given(flag) == "dapo" : arguments_.given(flag).has_value();
  }

  MilesArguments arguments_;
  MilesVariables variables_;
  string_view source_;
  Tree tree_;
  MilesImport result_;
};

}  // namespace

StatusOr<MilesImport> import_miles_args(string_view text, string_view source) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<ShellWord> words, split_shell_words(text, source));
  ACCORD_ASSIGN_OR_RETURN(MilesArguments arguments, MilesArguments::read(words, source));
  ACCORD_ASSIGN_OR_RETURN(MilesVariables variables, MilesVariables::read(words, source));
  return Importer(std::move(arguments), std::move(variables), source).run();
}

}  // namespace accord::recipe
