#include "recipe/environment.hpp"

#include <string>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::recipe;

namespace {

std::string recipe_text(const std::string& precision) {
  return "run: {name: t}\nmodel: {checkpoint: m}\ndata: {train: {path: p}}\nreward: {type: "
         "exact}\nprecision:\n" +
         precision;
}

const std::string kNvfp4 =
    "  configs: {nvfp4: {format: nvfp4}}\n  matchers: [{name: m, pattern: \"*\", config: nvfp4}]\n";

PrecisionPart read(const std::string& precision, const Environment& environment) {
  const StatusOr<Inspection> inspection = inspect_recipe(recipe_text(precision), "r.yaml", {}, environment);
  INFO((inspection.ok() ? std::string() : std::string(message_of(inspection.status()))));
  REQUIRE(inspection.ok());
  return inspection->recipe.precision;
}

std::string error_of(const std::string& precision, const Environment& environment) {
  const StatusOr<Inspection> inspection = inspect_recipe(recipe_text(precision), "r.yaml", {}, environment);
  return inspection.ok() ? "" : std::string(message_of(inspection.status()));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the environment of the NVFP4 recipe changes nothing, as its values are the defaults") {
  const Environment usual = {
      {"NVTE_NVFP4_DISABLE_2D_QUANTIZATION", "1"},           {"NVTE_NVFP4_DISABLE_RHT", "1"},
      {"NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING", "1"},       {"NVTE_NVFP4_ROW_SCALED_ACTIVATION", "1"},
      {"NVTE_BACKWARD_OVERRIDE", "high_precision"},          {"NVTE_USE_FAST_MATH", "0"},
      {"TRTLLM_DISABLE_FP4_QUANT_FAST_MATH", "1"},           {"FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH", "1"},
      {"SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION", "1"}, {"NVTE_NVFP4_4OVER6", "none"}};
  CHECK(read(kNvfp4 + "  from_environment: true\n", usual) == read(kNvfp4, {}));
}

TEST_CASE("environment variables set what the recipe leaves open") {
  const PrecisionPart part =
      read(kNvfp4 + "  from_environment: true\n", {{"NVTE_BACKWARD_OVERRIDE", "dequantized"},
                                                   {"NVTE_NVFP4_4OVER6", "weights"},
                                                   {"NVTE_NVFP4_4OVER6_ERR_MODE", "MAE"},
                                                   {"NVTE_NVFP4_4OVER6_E4M3_USE_256", "weights"}});
  CHECK(part.backward == BackwardMode::kDequantized);
  REQUIRE(part.configs.size() == 1);
  CHECK(part.configs[0].four_over_six == recipe::FourOverSix::kWeights);
  CHECK(part.configs[0].four_over_six_error == FourOverSixError::kMae);
  CHECK(part.configs[0].four_over_six_range == 256);
  CHECK(!part.from_environment);
}

TEST_CASE("environment variables are noted as ignored unless the recipe asks for them") {
  const StatusOr<Inspection> inspection = inspect_recipe(
      recipe_text(kNvfp4), "r.yaml", {}, {{"NVTE_BACKWARD_OVERRIDE", "dequantized"}, {"HOME", "/"}});
  REQUIRE(inspection.ok());
  CHECK(inspection->recipe.precision.backward == BackwardMode::kHighPrecision);
  REQUIRE(inspection->notes.size() == 1);
  CHECK(contains(inspection->notes[0], "ignored"));
  CHECK(contains(inspection->notes[0], "NVTE_BACKWARD_OVERRIDE=dequantized"));
  CHECK(!contains(inspection->notes[0], "HOME"));
}

TEST_CASE("an environment variable that contradicts is an error with both sides") {
  const std::string asked = kNvfp4 + "  from_environment: true\n";
  const std::string against_recipe =
      error_of(asked + "  backward: high_precision\n", {{"NVTE_BACKWARD_OVERRIDE", "dequantized"}});
  CHECK(contains(against_recipe, "r.yaml:"));
  CHECK(contains(against_recipe, "precision.backward"));
  CHECK(contains(against_recipe, "NVTE_BACKWARD_OVERRIDE=dequantized"));
  const std::string against_other =
      error_of(asked, {{"NVTE_USE_FAST_MATH", "0"}, {"FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH", "0"}});
  CHECK(contains(against_other, "NVTE_USE_FAST_MATH=0"));
  CHECK(contains(against_other, "FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH=0"));
  CHECK(contains(error_of(asked, {{"NVTE_NVFP4_DISABLE_RHT", "0"}}), "does not have"));
  CHECK(contains(error_of(asked, {{"NVTE_BACKWARD_OVERRIDE", "quantised"}}), "must be one of"));
  CHECK(contains(error_of(asked, {{"NVTE_NVFP4_4OVER6", "weights"}, {"FLASHINFER_NVFP4_4OVER6", "1"}}),
                 "agree"));
}

TEST_CASE("a misspelt variable of NVFP4 is a warning with the nearest name") {
  const Environment set = {{"NVTE_NVFP4_ROWSCALED_ACTIVATION", "1"}, {"NVTE_NVFP4_4OVER6", "none"}};
  const auto asked = inspect_recipe(recipe_text(kNvfp4 + "  from_environment: true\n"), "r.yaml", {}, set);
  REQUIRE(asked.ok());
  REQUIRE(asked->notes.size() == 2);
  CHECK(contains(asked->notes[0], "NVTE_NVFP4_ROWSCALED_ACTIVATION: unknown variable"));
  CHECK(contains(asked->notes[0], "did you mean NVTE_NVFP4_ROW_SCALED_ACTIVATION?"));
  const auto ignored = inspect_recipe(recipe_text(kNvfp4), "r.yaml", {}, set);
  REQUIRE(ignored.ok());
  CHECK(!contains(ignored->notes.at(0), "ROWSCALED"));
}
