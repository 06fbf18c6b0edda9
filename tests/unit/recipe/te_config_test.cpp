#include "recipe/te_config.hpp"

#include <string>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::recipe;

namespace {

const std::string kConfigs =
    "configs:\n"
    "  low:\n"
    "    transformer_engine_config_type: TEQuantizationParams\n"
    "    training_recipe: {fp8_quantization_recipe: mxfp8}\n"
    "  bf16:\n"
    "    transformer_engine_config_type: TEQuantizationParams\n"
    "    training_recipe: {}\n";

std::string error_of(const std::string& text) {
  const StatusOr<TeConfig> parsed = parse_te_config(text, "te.yaml");
  if (parsed.ok()) {
    return "";
  }
  CHECK(exit_code(parsed.status()) == ExitCode::kBadRecipe);
  return std::string(message_of(parsed.status()));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a precision file gives its enabled matchers in order") {
  const StatusOr<TeConfig> parsed = parse_te_config(
      kConfigs +
          "matchers:\n"
          "  second_in_name_order: {type: glob, pattern: \"*.linear_fc1\", config: low, enabled: True}\n"
          "  off: {type: glob, pattern: \"*.linear_fc2\", config: low}\n"
          "  all: {type: glob, pattern: \"*\", config: bf16, enabled: yes}\n",
      "te.yaml");
  REQUIRE(parsed.ok());
  REQUIRE(parsed->matchers.size() == 2);
  CHECK(parsed->matchers[0].pattern == "*.linear_fc1");
  CHECK(parsed->matchers[0].config == "low");
  CHECK(parsed->matchers[0].names == MatchNames::kMegatron);
  CHECK(parsed->matchers[1].pattern == "*");
  REQUIRE(parsed->disabled.size() == 1);
  CHECK(parsed->disabled[0] == "off");
  REQUIRE(parsed->configs.size() == 2);
  CHECK(parsed->configs[0].format == WeightFormat::kMXFP8);
  CHECK(parsed->configs[1].format == WeightFormat::kBF16);
}

TEST_CASE("a precision file says E5M2 gradients as hybrid and a match over BF16 layers") {
  const StatusOr<TeConfig> parsed = parse_te_config(
      "configs:\n"
      "  h:\n"
      "    transformer_engine_config_type: TEQuantizationParams\n"
      "    training_recipe: {fp8_quantization_recipe: mxfp8, fp8_format: hybrid, "
      "override_nonquantized_autocast: true}\n"
      "matchers:\n"
      "  m: {type: glob, pattern: \"*\", config: h, enabled: true}\n",
      "te.yaml");
  REQUIRE(parsed.ok());
  CHECK(parsed->configs[0].e5m2_gradients);
  CHECK(parsed->matchers[0].over_bf16_layers);
}

TEST_CASE("what a precision file cannot mean here is an error with its place") {
  const std::string matcher = "matchers:\n  m: {type: glob, pattern: \"*\", config: low, enabled: true";
  CHECK(contains(error_of(kConfigs + matcher + ", patern: x}\n"), "te.yaml:9:"));
  CHECK(contains(error_of(kConfigs + matcher + ", patern: x}\n"), "patern"));
  CHECK(contains(
      error_of(kConfigs + "matchers:\n  m: {type: regex, pattern: \"*\", config: low, enabled: true}\n"),
      "must be glob"));
  CHECK(contains(
      error_of(kConfigs + "matchers:\n  m: {type: glob, pattern: \"*\", config: lo, enabled: true}\n"),
      "did you mean 'low'?"));
  CHECK(
      contains(error_of(kConfigs + "matchers:\n  m: {type: glob, config: low, enabled: true}\n"), "pattern"));
  const auto training = [](const std::string& recipe) {
    return "configs:\n  c:\n    transformer_engine_config_type: TEQuantizationParams\n    training_recipe: " +
           recipe + "\nmatchers:\n  m: {type: glob, pattern: \"*\", config: c, enabled: true}\n";
  };
  CHECK(error_of(training("{fp4_quantization_recipe: nvfp4}")).empty());
  CHECK(contains(error_of(training("{fp8_quantization_recipe: delayed}")), "no format of this program"));
  CHECK(contains(error_of(training("{fp8_quantization_recipe: mxfp8, fp4_quantization_recipe: nvfp4}")),
                 "excludes"));
  CHECK(contains(error_of(training("{fp8_quantization_recipe: mxfp8, fp9: 1}")), "fp9"));
  CHECK(contains(error_of(training("{custom_recipe_factory: a.b}")), "never run"));
  CHECK(contains(error_of(training("{}\n    evaluation_recipe: {fp8_quantization_recipe: mxfp8}")),
                 "differs from training_recipe"));
  CHECK(contains(error_of("configs:\n  c: {training_recipe: {}}\nmatchers: {}\n"),
                 "must be TEQuantizationParams"));
  CHECK(contains(error_of("- 1\n"), "mapping"));
  CHECK(!error_of("configs: {").empty());
}

TEST_CASE("a recipe whose precision file cannot be read is refused with the key") {
  const StatusOr<Inspection> inspection = inspect_recipe(
      "run: {name: t}\nmodel: {checkpoint: m}\ndata: {train: {path: p}}\nreward: {type: exact}\n"
      "precision: {te_config_file: no/such/file.yaml}\n",
      "r.yaml", {}, {});
  REQUIRE(!inspection.ok());
  CHECK(contains(std::string(message_of(inspection.status())), "precision.te_config_file"));
  CHECK(contains(std::string(message_of(inspection.status())), "no/such/file.yaml"));
}
