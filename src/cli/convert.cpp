// accord convert: a checkpoint to MXFP8, NVFP4 or BF16.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/hf_config.hpp"
#include "cli/commands.hpp"
#include "cli/text_io.hpp"
#include "controller/conversion.hpp"
#include "precision/pattern.hpp"
#include "recipe/recipe.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string source;
  std::string destination;
  std::string recipe;
  std::string format;
  int64_t first = 0;
  int64_t last = 0;
  std::vector<std::string> hf_patterns;
  std::vector<std::string> megatron_patterns;
  int threads = 0;
  int64_t max_shard_bytes = checkpoint::kDefaultShardBytes;
  bool json = false;
};

enum class Names : uint8_t { kAny, kHf, kMegatron };

// Whether a pattern matches a weight under its Hugging Face names (the first two), its others, or any.
bool matches_a_weight(const std::string& text, Names kind, const std::vector<ParamSpec>& specs) {
  const precision::NamePattern pattern(text);
  for (const ParamSpec& spec : specs) {
    std::vector<std::string> names = precision::names_of(spec.name);
    const auto own = names.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(names.size()));
    if (kind == Names::kHf) {
      names.erase(own, names.end());
    } else if (kind == Names::kMegatron) {
      names.erase(names.begin(), own);
    }
    if (pattern.matches_any(names)) {
      return true;
    }
  }
  return false;
}

Status check_option_patterns(const char* option, const std::vector<std::string>& patterns, Names kind,
                             const std::vector<ParamSpec>& specs) {
  for (const std::string& pattern : patterns) {
    if (pattern.empty() || !matches_a_weight(pattern, kind, specs)) {
      return usage_error("{}: \"{}\" matches no weight of this model; a weight is called {}", option, pattern,
                         kind == Names::kHf ? specs.at(specs.size() / 2).name
                                            : precision::names_of(specs.at(specs.size() / 2).name).back());
    }
  }
  return absl::OkStatus();
}

Status check_recipe_patterns(const std::string& path, const recipe::PrecisionPart& precision,
                             const std::vector<ParamSpec>& specs) {
  const auto check = [&](const std::string& key, const std::string& pattern) {
    return matches_a_weight(pattern, Names::kAny, specs)
               ? absl::OkStatus()
               : recipe_error("{}: {}: pattern \"{}\" matches no weight of this model; correct or remove it",
                              path, key, pattern);
  };
  for (const std::string& pattern : precision.high_precision) {
    ACCORD_RETURN_IF_ERROR(check("precision.high_precision", pattern));
  }
  for (const recipe::PrecisionMatcher& matcher : precision.matchers) {
    if (matcher.enabled) {
      ACCORD_RETURN_IF_ERROR(check(fmt::format("precision.matchers: {}", matcher.name), matcher.pattern));
    }
  }
  return absl::OkStatus();
}

// Without a recipe: MXFP8 takes every linear layer; NVFP4 the routed experts, or the MLPs of a model without
// experts. The plan keeps kv_b_proj and shared experts, which no pattern here names (docs/contract.md,
// section 6).
StatusOr<recipe::PrecisionPart> precision_of_options(const Arguments& arguments, const ModelConfig& config,
                                                     const std::vector<ParamSpec>& specs) {
  recipe::PrecisionPart precision;
  if (arguments.format == "bf16") {
    if (arguments.first > 0 || arguments.last > 0 || !arguments.hf_patterns.empty() ||
        !arguments.megatron_patterns.empty()) {
      return usage_error(
          "--format bf16 quantizes nothing: options that keep layers in BF16 do not go with it");
    }
    return precision;
  }
  if (arguments.first + arguments.last >= config.num_layers) {
    return usage_error(
        "--num-layers-at-start-in-bf16 {} and --num-layers-at-end-in-bf16 {} leave none of the model's {} "
        "layers to quantize",
        arguments.first, arguments.last, config.num_layers);
  }
  ACCORD_RETURN_IF_ERROR(
      check_option_patterns("--extra-high-precision-layers-hf", arguments.hf_patterns, Names::kHf, specs));
  ACCORD_RETURN_IF_ERROR(check_option_patterns("--extra-high-precision-layers-megatron",
                                               arguments.megatron_patterns, Names::kMegatron, specs));
  recipe::PrecisionConfig format;
  format.name = arguments.format;
  format.format = arguments.format == "mxfp8" ? WeightFormat::kMXFP8 : WeightFormat::kNVFP4;
  precision.configs.push_back(format);
  std::string pattern = "*";
  if (format.format == WeightFormat::kNVFP4) {
    pattern = config.num_experts > 0 ? "*.mlp.experts.*" : "*.mlp.*";
  }
  precision.matchers.push_back({"linears", pattern, format.name, true});
  precision.bf16_layers.first.value = static_cast<double>(arguments.first);
  precision.bf16_layers.last.value = static_cast<double>(arguments.last);
  for (const auto* patterns : {&arguments.hf_patterns, &arguments.megatron_patterns}) {
    precision.high_precision.insert(precision.high_precision.end(), patterns->begin(), patterns->end());
  }
  return precision;
}

std::string to_text(const Arguments& arguments, const controller::ConversionReport& report) {
  return fmt::format("{}: {} weights, {} quantized, {:.3f} GB in {:.1f} s\n", arguments.destination,
                     report.weights, report.quantized, static_cast<double>(report.bytes) / 1e9,
                     report.seconds);
}

std::string to_json(const controller::ConversionReport& report) {
  const nlohmann::ordered_json out = {{"weights", report.weights},
                                      {"quantized", report.quantized},
                                      {"bytes", report.bytes},
                                      {"resumed_shards", report.resumed_shards},
                                      {"seconds", report.seconds}};
  return out.dump(1) + "\n";
}

Status convert(const Arguments& arguments) {
  if (arguments.recipe.empty() && arguments.format.empty()) {
    return usage_error("--recipe or --format is needed: they say which weights become what");
  }
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::HfConfig hf, checkpoint::read_hf_config(arguments.source));
  const std::vector<ParamSpec> specs = parameter_specs(hf.model);
  controller::ConversionOptions options;
  options.source = arguments.source;
  options.destination = arguments.destination;
  options.threads = arguments.threads;
  options.max_shard_bytes = arguments.max_shard_bytes;
  if (!arguments.recipe.empty()) {
    // Only the precision counts: a recipe that this version cannot train with can still be converted for.
    ACCORD_ASSIGN_OR_RETURN(const recipe::Inspection inspection,
                            recipe::inspect_recipe_file(arguments.recipe));
    options.precision = inspection.recipe.precision;
    options.mla = inspection.recipe.model.mla;
    ACCORD_RETURN_IF_ERROR(check_recipe_patterns(arguments.recipe, options.precision, specs));
  } else {
    ACCORD_ASSIGN_OR_RETURN(options.precision, precision_of_options(arguments, hf.model, specs));
  }
  ACCORD_ASSIGN_OR_RETURN(const controller::ConversionReport report, controller::convert_checkpoint(options));
  return write_output("-", arguments.json ? to_json(report) : to_text(arguments, report));
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  CLI::App* command = app.add_subcommand(
      "convert", "Convert a checkpoint to MXFP8, NVFP4 or BF16; the bytes are those of the live export");
  command->add_option("source", a.source, "A Hugging Face directory, quantized or not")->required();
  command->add_option("destination", a.destination, "A directory that does not exist yet")->required();
  CLI::Option* recipe = command->add_option("--recipe", a.recipe,
                                            "The recipe whose precision plan decides the weights' formats");
  const auto no_recipe = [&](CLI::Option* option) { return option->excludes(recipe); };
  no_recipe(
      command->add_option("--format", a.format,
                          "mxfp8: all linear layers; nvfp4: routed experts, or the MLPs of a dense model; "
                          "bf16: decode"))
      ->check(CLI::IsMember({"mxfp8", "nvfp4", "bf16"}));
  no_recipe(command->add_option("--num-layers-at-start-in-bf16", a.first, "Layers that stay BF16 (0)"))
      ->check(CLI::Range(0, 1 << 20));
  no_recipe(command->add_option("--num-layers-at-end-in-bf16", a.last, "Layers that stay BF16 (0)"))
      ->check(CLI::Range(0, 1 << 20));
  no_recipe(command->add_option("--extra-high-precision-layers-hf", a.hf_patterns,
                                "Weights that stay BF16: globs, or parts of Hugging Face names"));
  no_recipe(command->add_option("--extra-high-precision-layers-megatron", a.megatron_patterns,
                                "The same of Megatron names, such as decoder.layers.0.*"));
  command->add_option("--threads", a.threads, "Threads; never changes a byte (0: all)")
      ->check(CLI::Range(0, 1024));
  command->add_option("--max-shard-bytes", a.max_shard_bytes, "Largest file of weights")
      ->check(positive_number())
      ->capture_default_str();
  command->add_flag("--json", a.json, "The summary as JSON");
  command->callback([arguments, &action] { action = [arguments] { return convert(*arguments); }; });
}

}  // namespace accord::cli
