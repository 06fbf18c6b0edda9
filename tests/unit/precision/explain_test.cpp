#include <algorithm>
#include <string>

#include "checkpoint/hf_config.hpp"
#include "precision/plan.hpp"
#include "precision/plan_summary.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::precision;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Planned {
  ModelConfig config;
  recipe::PrecisionPart precision;
  PrecisionPlan plan;

  std::string explained(const std::string& tensor) const {
    const StatusOr<std::string> text = explain(config, precision, plan, tensor);
    return text.ok() ? *text : std::string(message_of(text.status()));
  }
};

Planned planned(const std::string& model, const std::string& precision) {
  const StatusOr<checkpoint::HfConfig> config =
      checkpoint::read_hf_config_file(std::string(ACCORD_TEST_DATA) + "/plans/" + model + ".json");
  REQUIRE(config.ok());
  const auto inspection = recipe::inspect_recipe(
      "run: {name: t}\nmodel: {checkpoint: m}\ndata: {train: {path: p}}\nreward: {type: exact}\nprecision: " +
          precision + "\n",
      "t.yaml", {}, {});
  INFO((inspection.ok() ? std::string() : std::string(message_of(inspection.status()))));
  REQUIRE(inspection.ok());
  StatusOr<PrecisionPlan> plan = build_plan(config->model, inspection->recipe.precision);
  REQUIRE(plan.ok());
  return {config->model, inspection->recipe.precision, std::move(*plan)};
}

}  // namespace

TEST_CASE("explain says which rule decided and what the others said") {
  const Planned run = planned("qwen3_30b_a3b",
                              "{configs: {low: {format: nvfp4}}, matchers: [{name: routed, pattern: "
                              "\"*.mlp.experts.*\", config: low}], "
                              "bf16_layers: {first: 0, last: 15%}, high_precision: [.q_proj.]}");
  const std::string expert = run.explained("model.layers.3.mlp.experts.7.up_proj.weight");
  CHECK(contains(expert, "format        nvfp4"));
  CHECK(contains(expert, "decided by    matcher routed -> low"));
  CHECK(contains(expert, "high_precision \".q_proj.\": does not match"));
  CHECK(contains(expert, "none of them"));
  const std::string late = run.explained("model.layers.47.mlp.experts.7.up_proj.weight");
  CHECK(contains(late, "format        bf16"));
  CHECK(contains(late, "bf16_layers.last"));
  CHECK(contains(late, "matcher routed \"*.mlp.experts.*\" -> low: matches"));
  CHECK(contains(run.explained("model.layers.0.self_attn.q_proj"),
                 "decided by    high_precision \".q_proj.\""));
  CHECK(contains(run.explained("lm_head.weight"), "structure: lm_head"));
}

TEST_CASE("explain knows Megatron names and tells weights that differ apart") {
  const Planned run = planned("qwen3_30b_a3b",
                              "{configs: {low: {format: mxfp8}}, matchers: [{name: most, pattern: \"*\", "
                              "config: low}], high_precision: "
                              "[.q_proj.]}");
  const std::string text = run.explained("decoder.layers.0.self_attention.linear_qkv");
  CHECK(contains(text, "weight        model.layers.0.self_attn.q_proj.weight"));
  CHECK(contains(text, "weight        model.layers.0.self_attn.k_proj.weight, and 1 more"));
  CHECK(contains(run.explained("model.layers.0.self_attn.w_proj"), "no weight of this model has this name"));
  CHECK(contains(run.explained("model.layers.7.self_atn.o_proj.weight"),
                 "did you mean model.layers.7.self_attn.o_proj.weight?"));
  CHECK(contains(run.explained("decoder.layers.0.self_attention.linear_qvk"),
                 "did you mean decoder.layers.0.self_attention.linear_qkv"));
  CHECK(!contains(run.explained("nothing"), "did you mean"));
}

TEST_CASE("explain says why a pattern for everything leaves kv_b_proj and shared experts alone") {
  const Planned run =
      planned("deepseek_v3",
              "{configs: {low: {format: mxfp8}}, matchers: [{name: most, pattern: \"*\", config: low}]}");
  for (const char* name :
       {"model.layers.5.self_attn.kv_b_proj.weight", "model.layers.5.mlp.shared_experts.up_proj.weight"}) {
    CAPTURE(name);
    const std::string text = run.explained(name);
    CHECK(contains(text, "format        bf16"));
    CHECK(contains(text, "decided by    rule: "));
    CHECK(contains(text, "does not say this weight's name"));
  }
}

TEST_CASE("the summary of DeepSeek-V3 counts experts and the BF16 kv_b_proj") {
  const Planned run = planned("deepseek_v3",
                              "{configs: {low: {format: nvfp4}}, matchers: [{name: routed, pattern: "
                              "\"*.mlp.experts.*\", config: low}], "
                              "bf16_layers: {first: 0, last: 15%}}");
  const PlanSummary summary = summarize(run.plan);
  CHECK(summary.parameters == 671'026'419'200);  // with the biases of the routers
  CHECK(summary.routed == 653'908'770'816);
  CHECK(summary.experts() == 656'463'101'952);
  CHECK(summary.total(WeightFormat::kNVFP4).parameters == 541'165'879'296);
  const auto kv_b = std::find_if(summary.groups.begin(), summary.groups.end(),
                                 [](const PlanGroup& group) { return contains(group.module, "kv_b_proj"); });
  REQUIRE(kv_b != summary.groups.end());
  CHECK(kv_b->format == WeightFormat::kBF16);
  CHECK(kv_b->weights == 61);
  CHECK(static_cast<double>(kv_b->bytes) / (1 << 30) == 1.90625);
  CHECK(contains(summary.to_text(), "1.90625 GiB"));
}
