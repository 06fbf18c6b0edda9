#include "recipe/miles_args.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <utility>

#include "recipe/environment.hpp"
#include "recipe/schema.hpp"
#include "recipe/shell_words.hpp"
#include "recipe/te_config.hpp"
#include "recipe/utf8.hpp"

namespace accord::recipe {
namespace {

using std::string_view;

enum class Kind : uint8_t { kNumber, kText, kFlag, kList };

// A flag whose value is the value of a key. An empty key: the flag is read elsewhere in this file.
struct Known {
  string_view flag;
  Kind kind;
  string_view key;
};

constexpr Known kKnown[] = {
    {"--hf-checkpoint", Kind::kText, "model.checkpoint"},
    {"--prompt-data", Kind::kText, "data.train.path"},
    {"--input-key", Kind::kText, "data.train.prompt_key"},
    {"--label-key", Kind::kText, "data.train.label_key"},
    {"--rm-type", Kind::kText, ""},
    {"--num-rollout", Kind::kNumber, "run.steps"},
    {"--seed", Kind::kNumber, "run.seed"},
    {"--rollout-batch-size", Kind::kNumber, "rollout.prompts_per_step"},
    {"--n-samples-per-prompt", Kind::kNumber, "rollout.samples_per_prompt"},
    {"--rollout-max-prompt-len", Kind::kNumber, "rollout.max_prompt_tokens"},
    {"--rollout-max-response-len", Kind::kNumber, "rollout.max_response_tokens"},
    {"--rollout-temperature", Kind::kNumber, "rollout.temperature"},
    {"--rollout-top-p", Kind::kNumber, "rollout.top_p"},
    {"--rollout-top-k", Kind::kNumber, "rollout.top_k"},
    {"--max-tokens-per-gpu", Kind::kNumber, "trainer.tokens_per_microbatch"},
    {"--lr", Kind::kNumber, "trainer.optimizer.lr"},
    {"--lr-decay-style", Kind::kText, "trainer.optimizer.schedule"},
    {"--min-lr", Kind::kNumber, "trainer.optimizer.min_lr"},
    {"--lr-warmup-iters", Kind::kNumber, "trainer.optimizer.warmup_steps"},
    {"--adam-beta1", Kind::kNumber, ""},
    {"--adam-beta2", Kind::kNumber, ""},
    {"--adam-eps", Kind::kNumber, "trainer.optimizer.eps"},
    {"--weight-decay", Kind::kNumber, "trainer.optimizer.weight_decay"},
    {"--clip-grad", Kind::kNumber, "trainer.optimizer.clip_grad"},
    {"--advantage-estimator", Kind::kText, "algorithm.type"},
    {"--eps-clip", Kind::kNumber, "algorithm.clip_low"},
    {"--eps-clip-high", Kind::kNumber, "algorithm.clip_high"},
    {"--eps-clip-c", Kind::kNumber, "algorithm.clip_dual"},
    {"--entropy-coef", Kind::kNumber, "algorithm.entropy_coefficient"},
    {"--calculate-per-token-loss", Kind::kFlag, ""},
    {"--use-tis", Kind::kFlag, ""},
    {"--save-interval", Kind::kNumber, "checkpoint.every"},
    {"--transformer-impl", Kind::kText, ""},
    {"--bf16", Kind::kFlag, ""},
    {"--fp16", Kind::kFlag, ""},
    {"--fp8-format", Kind::kText, ""},
    {"--fp8-recipe", Kind::kText, ""},
    {"--fp4-format", Kind::kText, ""},
    {"--fp4-recipe", Kind::kText, ""},
    {"--te-precision-config-file", Kind::kText, ""},
    {"--first-last-layers-bf16", Kind::kFlag, ""},
    {"--num-layers-at-start-in-bf16", Kind::kNumber, ""},
    {"--num-layers-at-end-in-bf16", Kind::kNumber, ""},
    {"--extra-high-precision-layers-hf", Kind::kList, ""},
    {"--extra-high-precision-layers-megatron", Kind::kList, ""},
};

const Known* find_known(string_view flag) {
  const auto found = std::find_if(std::begin(kKnown), std::end(kKnown),
                                  [&](const Known& known) { return known.flag == flag; });
  return found == std::end(kKnown) ? nullptr : &*found;
}

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

struct Argument {
  std::vector<ShellWord> values;
  int32_t line = 1;
};

class Importer {
 public:
  explicit Importer(string_view source) : source_(source) {}

  StatusOr<MilesImport> run(const std::vector<ShellWord>& words) {
    ACCORD_RETURN_IF_ERROR(collect(words));
    name_run();
    for (const Known& known : kKnown) {
      if (!known.key.empty() && given(known.flag)) {
        tree_.set(known.key,
                  known.kind == Kind::kNumber ? *given(known.flag) : quoted_yaml(*given(known.flag)));
      }
    }
    import_objective();
    PrecisionPart precision;
    ACCORD_RETURN_IF_ERROR(import_formats(precision));
    ACCORD_RETURN_IF_ERROR(import_layers(precision));
    ACCORD_RETURN_IF_ERROR(import_patterns(precision));
    ACCORD_RETURN_IF_ERROR(import_environment(precision));
    result_.yaml = tree_.yaml() + precision_to_yaml(precision);
    ACCORD_RETURN_IF_ERROR(check());
    if (!unknown_.empty()) {
      result_.notes.push_back(fmt::format("not imported: {}", fmt::join(unknown_, " ")));
    }
    return std::move(result_);
  }

 private:
  template <class... Args>
  Status fail(string_view flag, fmt::format_string<Args...> format, Args&&... args) const {
    const auto found = arguments_.find(flag);
    return recipe_error("{}:{}: {}: {}", source_, found == arguments_.end() ? 1 : found->second.line, flag,
                        fmt::format(format, std::forward<Args>(args)...));
  }

  Status collect(const std::vector<ShellWord>& words) {
    for (size_t i = 0; i < words.size(); ++i) {
      const ShellWord& word = words[i];
      if (!word.text.starts_with("--")) {
        take_variable(word);
        continue;
      }
      const size_t equals = word.text.find('=');
      const std::string flag = word.text.substr(0, equals);
      Argument argument;
      argument.line = word.line;
      if (equals != std::string::npos) {
        argument.values.push_back({word.text.substr(equals + 1), word.line, word.expands});
      }
      while (i + 1 < words.size() && !words[i + 1].text.starts_with("--") &&
             !is_variable(words[i + 1].text)) {
        argument.values.push_back(words[++i]);
      }
      ACCORD_RETURN_IF_ERROR(take(flag, std::move(argument)));
    }
    return absl::OkStatus();
  }

  // NAME=value, as shells set variables.
  static bool is_variable(string_view text) {
    const size_t equals = text.find('=');
    return text == "export" || (equals != string_view::npos && equals > 0 &&
                                std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(equals),
                                            [](unsigned char c) {
                                              return std::isupper(c) != 0 || std::isdigit(c) != 0 || c == '_';
                                            }));
  }

  void take_variable(const ShellWord& word) {
    const size_t equals = word.text.find('=');
    if (is_variable(word.text) && equals != std::string::npos) {
      environment_[word.text.substr(0, equals)] = word.text.substr(equals + 1);
    }
  }

  Status take(const std::string& flag, Argument argument) {
    const Known* known = find_known(flag);
    if (known == nullptr) {
      ACCORD_RETURN_IF_ERROR(check_spelling(flag, argument.line));
      unknown_.push_back(flag);
      return absl::OkStatus();
    }
    const int32_t line = argument.line;
    if (const auto [place, fresh] = arguments_.emplace(flag, std::move(argument)); !fresh) {
      return recipe_error("{}:{}: {}: given twice, first on line {} (keep one)", source_, line, flag,
                          place->second.line);
    }
    const std::vector<ShellWord>& values = arguments_.find(flag)->second.values;
    const size_t wanted = known->kind == Kind::kFlag ? 0 : 1;
    if (known->kind == Kind::kList ? values.empty() : values.size() != wanted) {
      return fail(flag, "takes {}, {} given",
                  known->kind == Kind::kList ? "patterns"
                  : wanted == 0              ? "no value"
                                             : "one value",
                  values.size());
    }
    for (const ShellWord& value : values) {
      if (value.expands) {
        return fail(flag, "'{}' needs a shell to be resolved (write the value out)", printable(value.text));
      }
      if (find_invalid_utf8(value.text) != string_view::npos) {
        return fail(flag, "the value is not valid UTF-8");
      }
    }
    if (known->kind == Kind::kNumber && !parse_real(values.front().text)) {
      return fail(flag, "must be a number, is '{}'", printable(values.front().text));
    }
    return absl::OkStatus();
  }

  // A slip of the pen in a flag would silently change what is trained.
  Status check_spelling(const std::string& flag, int32_t line) const {
    std::vector<std::string> close;
    for (const Known& known : kKnown) {
      const size_t longer = std::max(known.flag.size(), flag.size());
      if (longer - std::min(known.flag.size(), flag.size()) <= 1 && longer >= kMinSpelled) {
        close.emplace_back(known.flag);
      }
    }
    const auto guess = nearest(flag, close);
    if (guess && differences(*guess, flag) <= 2) {
      return recipe_error("{}:{}: {}: unknown flag (did you mean {}?)", source_, line, printable(flag),
                          *guess);
    }
    return absl::OkStatus();
  }

  // Characters that differ outside the common beginning and end.
  static size_t differences(string_view a, string_view b) {
    while (!a.empty() && !b.empty() && a.front() == b.front()) {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
    while (!a.empty() && !b.empty() && a.back() == b.back()) {
      a.remove_suffix(1);
      b.remove_suffix(1);
    }
    return std::max(a.size(), b.size());
  }

  static std::string printable(string_view text) {
    std::string out;
    for (const char c : text.substr(0, 80)) {
      out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F ? '?' : c;
    }
    return out;
  }

  std::optional<std::string> given(string_view flag) const {
    const auto found = arguments_.find(flag);
    if (found == arguments_.end()) {
      return std::nullopt;
    }
    return found->second.values.empty() ? std::string() : found->second.values.front().text;
  }

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

  void import_objective() {
    if (const auto reward = given("--rm-type")) {
      if (*reward == "dapo") {
        tree_.set("reward.type", "math_dapo_integer");
      } else {
        result_.notes.push_back(
            fmt::format("--rm-type {}: choose reward.type (docs/migrating.md)", printable(*reward)));
      }
    }
    if (given("--adam-beta1") || given("--adam-beta2")) {
      tree_.set("trainer.optimizer.betas", fmt::format("[{}, {}]", given("--adam-beta1").value_or("0.9"),
                                                       given("--adam-beta2").value_or("0.999")));
    }
    if (given("--advantage-estimator")) {
      tree_.set("algorithm.aggregate",
                given("--calculate-per-token-loss") ? "token-mean" : "seq-mean-token-mean");
    }
    if (given("--use-tis")) {
      tree_.set("algorithm.importance_correction", "tis");
    }
  }

  Status import_formats(PrecisionPart& precision) {
    if (given("--fp16")) {
      return fail("--fp16", "float16 is no format of this program (use bf16)");
    }
    if (const auto engine = given("--transformer-impl"); engine && *engine != "transformer_engine") {
      return fail("--transformer-impl", "must be transformer_engine, is '{}'", printable(*engine));
    }
    const auto fp8 = given("--fp8-format");
    const auto fp4 = given("--fp4-format");
    if (fp8 && fp4) {
      return fail("--fp4-format", "excludes --fp8-format (keep one)");
    }
    ACCORD_RETURN_IF_ERROR(check_pair("--fp8-format", {"e4m3", "hybrid"}, "--fp8-recipe", "mxfp8"));
    ACCORD_RETURN_IF_ERROR(check_pair("--fp4-format", {"e2m1"}, "--fp4-recipe", "nvfp4"));
    if (const auto file = given("--te-precision-config-file")) {
      if (!fp8 && !fp4) {
        return fail(
            "--te-precision-config-file",
            "without --fp8-format or --fp4-format Megatron quantizes next to nothing of what the file "
            "says (give one; or write te_config_file into a recipe to have all of it)");
      }
      precision.te_config_file = *file;
      Findings findings;
      resolve_te_config(precision, findings, result_.notes);
      if (!findings.problems().empty()) {
        return fail("--te-precision-config-file", "{}", findings.problems().front().rule);
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
    if (given(format).has_value() != given(recipe).has_value()) {
      const string_view have = given(format) ? format : recipe;
      return fail(have, "needs {} as well (give both or neither)", given(format) ? recipe : format);
    }
    if (given(format) && std::find(formats.begin(), formats.end(), *given(format)) == formats.end()) {
      return fail(format, "must be {}, is '{}'", fmt::join(formats, " or "), printable(*given(format)));
    }
    if (given(recipe) && *given(recipe) != recipes) {
      return fail(recipe, "must be {}, is '{}' (no other scaling exists here)", recipes,
                  printable(*given(recipe)));
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
    const bool asked = given("--first-last-layers-bf16").has_value();
    const auto read = [&](const char* flag, LayerShare& share) -> Status {
      const auto text = given(flag);
      const auto count = text ? parse_integer(*text) : std::optional<int64_t>(asked ? 1 : 0);
      if (!count || *count < 0 || *count > 1'000'000) {
        return fail(flag, "must be a number of layers, is '{}'", printable(text.value_or("")));
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
      const auto found = arguments_.find(flag);
      if (found == arguments_.end()) {
        continue;
      }
      for (const ShellWord& value : found->second.values) {
        // One quoted value may hold several patterns.
        string_view rest = value.text;
        while (!rest.empty()) {
          const size_t end = std::min(rest.find_first_of(" \t\n"), rest.size());
          const std::string pattern(rest.substr(0, end));
          rest.remove_prefix(std::min(end + 1, rest.size()));
          if (pattern.find_first_of("*?[") != std::string::npos) {
            return fail(flag, "'{}': patterns there are plain parts of names, which never hold * ? or [",
                        printable(pattern));
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
    precision.from_environment = true;
    Findings findings;
    std::vector<std::string> notes;
    resolve_environment(environment_, precision, findings, notes);
    if (!findings.problems().empty()) {
      return recipe_error("{}: {}", source_, findings.problems().front().rule);
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
    const StatusOr<Inspection> loaded = inspect_recipe(result_.yaml, source_, fill, {});
    if (!loaded.ok()) {
      return annotate(loaded.status(), "the imported recipe would be refused");
    }
    if (!loaded->refused.ok()) {
      result_.notes.emplace_back(message_of(loaded->refused));
    }
    if (!missing.empty()) {
      result_.notes.push_back(fmt::format("fill in: {}", fmt::join(missing, ", ")));
    }
    return absl::OkStatus();
  }

  bool has_key(string_view key, string_view flag) const {
    return key == "reward.type" ? given(flag) == "dapo" : given(flag).has_value();
  }

  static constexpr size_t kMinSpelled = 10;

  string_view source_;
  std::map<std::string, Argument, std::less<>> arguments_;
  Environment environment_;
  std::vector<std::string> unknown_;
  Tree tree_;
  MilesImport result_;
};

}  // namespace

StatusOr<MilesImport> import_miles_args(string_view text, string_view source) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<ShellWord> words, split_shell_words(text, source));
  return Importer(source).run(words);
}

}  // namespace accord::recipe
