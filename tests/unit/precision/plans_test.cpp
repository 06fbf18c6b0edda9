// Whole plans of published models: tests/data/plans/cases.json holds recipes, and the weights and parameters
// that each format gets, as an implementation in another language counted them from the contract.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/files.hpp"
#include "checkpoint/hf_config.hpp"
#include "precision/plan.hpp"
#include "precision/plan_summary.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::precision;

namespace {

const std::string kData = std::string(ACCORD_TEST_DATA) + "/plans/";

ModelConfig model(const std::string& name) {
  StatusOr<checkpoint::HfConfig> config = checkpoint::read_hf_config_file(kData + name + ".json");
  INFO((config.ok() ? std::string() : std::string(message_of(config.status()))));
  REQUIRE(config.ok());
  return std::move(config->model);
}

recipe::PrecisionPart part(std::string yaml) {
  constexpr std::string_view kPlace = "@DATA@/";
  if (const size_t at = yaml.find(kPlace); at != std::string::npos) {
    yaml.replace(at, kPlace.size(), kData);
  }
  std::string text =
      "run: {name: t}\nmodel: {checkpoint: m}\ndata: {train: {path: p}}\nreward: {type: exact}\nprecision:\n";
  for (size_t begin = 0; begin < yaml.size();) {
    const size_t end = std::min(yaml.find('\n', begin), yaml.size());
    text += "  " + yaml.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  const auto inspection = recipe::inspect_recipe(text, "t.yaml", {}, {});
  INFO((inspection.ok() ? std::string() : std::string(message_of(inspection.status()))));
  REQUIRE(inspection.ok());
  CHECK(!inspection->recipe.precision.te_config_file.has_value());
  // What a run records loads back to the same plan.
  const auto again = recipe::inspect_recipe(recipe::to_yaml(inspection->recipe), "again.yaml", {}, {});
  REQUIRE(again.ok());
  CHECK(again->recipe == inspection->recipe);
  return inspection->recipe.precision;
}

}  // namespace

TEST_CASE("plans of published models give each format the weights that the contract says") {
  const auto text = read_file(kData + "cases.json", 1 << 22);
  REQUIRE(text.ok());
  const nlohmann::json cases = nlohmann::json::parse(*text);
  CHECK(cases.size() >= 40);
  for (const nlohmann::json& one : cases) {
    CAPTURE(one["name"].get<std::string>());
    const ModelConfig config = model(one["model"].get<std::string>());
    const StatusOr<PrecisionPlan> plan = build_plan(config, part(one["precision"].get<std::string>()));
    INFO((plan.ok() ? std::string() : std::string(message_of(plan.status()))));
    REQUIRE(plan.ok());
    const PlanSummary summary = summarize(*plan);
    nlohmann::json found = nlohmann::json::object();
    int64_t parameters = 0;
    for (const PlanGroup& group : summary.groups) {
      const PlanGroup sum = summary.total(group.format);
      found[std::string(format_word(group.format))] = {sum.weights, sum.parameters};
      parameters += group.parameters;
    }
    CHECK(found == one["expect"]);
    CHECK(parameters == summary.parameters);
  }
}
