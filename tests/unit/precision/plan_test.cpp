#include "precision/plan.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::precision;
using recipe::PrecisionPart;

namespace {

ModelConfig moe(int64_t layers) {
  ModelConfig config;
  config.vocab_size = 100;
  config.hidden_size = 64;
  config.num_layers = layers;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 96;
  config.num_experts = 3;
  config.num_experts_per_token = 2;
  config.moe_intermediate_size = 48;  // divides by 16, not by 32
  config.layer_is_moe.assign(static_cast<size_t>(layers), true);
  config.qk_norm = true;
  config.max_position_embeddings = 128;
  return config;
}

PrecisionPart part(const std::string& yaml) {
  const std::string text =
      "run: {name: t}\nmodel: {checkpoint: m}\ndata: {train: {path: p}}\nreward: {type: exact}\nprecision: " +
      yaml;
  const auto inspection = recipe::inspect_recipe(text, "t.yaml");
  INFO((inspection.ok() ? std::string() : std::string(message_of(inspection.status()))));
  REQUIRE(inspection.ok());
  return inspection->recipe.precision;
}

PrecisionPlan plan_of(const ModelConfig& config, const std::string& yaml) {
  StatusOr<PrecisionPlan> plan = build_plan(config, part(yaml));
  INFO((plan.ok() ? std::string() : std::string(message_of(plan.status()))));
  REQUIRE(plan.ok());
  return std::move(*plan);
}

const PlanRow& row(const PrecisionPlan& plan, const std::string& name) {
  CAPTURE(name);
  const PlanRow* found = plan.find(name);
  REQUIRE(found != nullptr);
  return *found;
}

const std::string kExperts =
    "{configs: {q: {format: FORMAT}, b: {format: bf16}}, matchers: [{name: routed, pattern: "
    "\"*.mlp.experts.*\", config: q}, {name: rest, pattern: \"*\", config: b}]EXTRA}";

std::string experts(const std::string& format, const std::string& extra = "") {
  std::string text = kExperts;
  text.replace(text.find("FORMAT"), 6, format);
  text.replace(text.find("EXTRA"), 5, extra);
  return text;
}

}  // namespace

TEST_CASE("a plan has one row per parameter, in canonical order, and find agrees") {
  const ModelConfig config = moe(2);
  const PrecisionPlan plan = plan_of(config, "{}");
  const std::vector<ParamSpec> specs = parameter_specs(config);
  REQUIRE(plan.rows.size() == specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    CHECK(plan.rows[i].name == specs[i].name);
    CHECK(plan.rows[i].shape == specs[i].shape);
    CHECK(plan.rows[i].format == WeightFormat::kBF16);
    CHECK(plan.find(specs[i].name) == &plan.rows[i]);
    CHECK(plan.rows[i].weight_decay == (specs[i].role != ParamRole::kNorm));
  }
  CHECK(plan.find("nothing") == nullptr);
  CHECK(plan.warnings.empty());
  CHECK(!plan.any(WeightFormat::kMXFP8));
}

TEST_CASE("the order of decision is structure, exceptions, layers, matchers") {
  const ModelConfig config = moe(4);
  const PrecisionPlan plan = plan_of(
      config,
      experts("mxfp8", ", bf16_layers: {first: 1, last: 25%}, high_precision: [\"*.experts.1.up_proj\"]"));
  // Structure wins over everything, also where a matcher names it.
  CHECK(row(plan, "model.embed_tokens.weight").reason == "structure: embedding");
  CHECK(row(plan, "lm_head.weight").reason == "structure: lm_head");
  CHECK(row(plan, "model.layers.1.mlp.gate.weight").reason == "structure: router");
  CHECK(row(plan, "model.layers.1.self_attn.q_norm.weight").reason == "structure: norm");
  // 48 does not divide by 32.
  CHECK(row(plan, "model.layers.1.mlp.experts.0.down_proj.weight").format == WeightFormat::kBF16);
  CHECK(row(plan, "model.layers.1.mlp.experts.0.down_proj.weight").reason.find("contracted length 48") !=
        std::string::npos);
  // An exception wins over the layers and matchers.
  CHECK(row(plan, "model.layers.0.mlp.experts.1.up_proj.weight").reason ==
        "high_precision \"*.experts.1.up_proj\"");
  CHECK(row(plan, "model.layers.0.mlp.experts.0.up_proj.weight").reason ==
        "bf16_layers.first: the first 1 of 4");
  CHECK(row(plan, "model.layers.3.mlp.experts.0.up_proj.weight").reason ==
        "bf16_layers.last: the last 1 of 4");
  const PlanRow& quantized = row(plan, "model.layers.1.mlp.experts.0.up_proj.weight");
  CHECK(quantized.format == WeightFormat::kMXFP8);
  CHECK(quantized.reason == "matcher routed -> q");
  CHECK(!quantized.weight_decay);
  CHECK(quantized.unit.empty());
  const PlanRow& attention = row(plan, "model.layers.1.self_attn.q_proj.weight");
  CHECK(attention.format == WeightFormat::kBF16);
  CHECK(attention.reason == "matcher rest -> b");
  CHECK(attention.weight_decay);
  REQUIRE(plan.warnings.size() == 1);
  CHECK(plan.warnings[0].find("6 weights") == 0);
}

TEST_CASE("the first enabled matcher wins") {
  const std::string head = "{configs: {q: {format: mxfp8}, b: {format: bf16}}, matchers: [";
  const std::string a = "{name: a, pattern: \"*q_proj\", config: q";
  const std::string b = "{name: b, pattern: \"*_proj\", config: b}";
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  CHECK(row(plan_of(moe(1), head + a + "}, " + b + "]}"), name).format == WeightFormat::kMXFP8);
  const PrecisionPlan later = plan_of(moe(1), head + b + ", " + a + "}]}");
  CHECK(row(later, name).format == WeightFormat::kBF16);
  REQUIRE(later.warnings.size() == 1);
  CHECK(later.warnings[0] == "matcher a: all 1 weights that it matches were decided before it");
  CHECK(row(plan_of(moe(1), head + a + ", enabled: false}, " + b + "]}"), name).format ==
        WeightFormat::kBF16);
}

TEST_CASE("the last 15 % of 48 layers are 8") {
  ModelConfig config = moe(48);
  config.num_experts = 1;
  config.num_experts_per_token = 1;
  const PrecisionPlan plan = plan_of(config, experts("mxfp8", ", bf16_layers: {last: 15%}"));
  for (int layer = 0; layer < 48; ++layer) {
    const PlanRow& up = row(plan, "model.layers." + std::to_string(layer) + ".mlp.experts.0.up_proj.weight");
    CHECK((up.format == WeightFormat::kMXFP8) == (layer < 40));
  }
}

TEST_CASE("gate and up of one MLP are one NVFP4 unit") {
  const PrecisionPlan plan = plan_of(moe(1), experts("nvfp4"));
  const std::string prefix = "model.layers.0.mlp.experts.2.";
  CHECK(row(plan, prefix + "gate_proj.weight").unit == prefix + "gate_up_proj");
  CHECK(row(plan, prefix + "up_proj.weight").unit == prefix + "gate_up_proj");
  CHECK(row(plan, prefix + "down_proj.weight").unit == prefix + "down_proj");
  CHECK(row(plan, prefix + "down_proj.weight").format == WeightFormat::kNVFP4);
  CHECK(row(plan, "model.layers.0.self_attn.q_proj.weight").unit.empty());

  const StatusOr<PrecisionPlan> half =
      build_plan(moe(1), part(experts("nvfp4", ", high_precision: [\"*.experts.1.up_proj\"]")));
  REQUIRE(!half.ok());
  CHECK(exit_code(half.status()) == ExitCode::kBadRecipe);
  CHECK(message_of(half.status()).find("model.layers.0.mlp.experts.1.gate_proj.weight") == 0);
}

TEST_CASE("rows that a 16x16 layout does not divide are an error that names the tensor") {
  ModelConfig config = moe(1);
  config.moe_intermediate_size = 40;
  const StatusOr<PrecisionPlan> plan = build_plan(
      config, part("{configs: {q: {format: nvfp4, scope: tensor, layout: 16x16}}, matchers: [{name: m, "
                   "pattern: \"*.experts.*\", config: q}]}"));
  REQUIRE(!plan.ok());
  CHECK(message_of(plan.status()).find("model.layers.0.mlp.experts.0.gate_proj.weight: 40 rows") == 0);
}

TEST_CASE("keys without effect are warnings") {
  const PrecisionPlan plan =
      plan_of(moe(2),
              "{configs: {q: {format: mxfp8}, z: {format: bf16}}, matchers: [{name: typo, pattern: "
              "\"*.mlp.expert.*\", config: q}], high_precision: [\".kv_b_proj.\"], bf16_layers: {first: 9}}");
  REQUIRE(plan.warnings.size() == 4);
  CHECK(plan.warnings[0] ==
        "high_precision \".kv_b_proj.\": pattern \".kv_b_proj.\" matches no weight of this model");
  CHECK(plan.warnings[1] == "matcher typo: pattern \"*.mlp.expert.*\" matches no weight of this model");
  CHECK(plan.warnings[2] == "config z: no enabled matcher uses it");
  CHECK(plan.warnings[3] == "bf16_layers.first: 9 layers of a model that has 2");
}

TEST_CASE("the digest covers what determines bytes, and nothing else") {
  const std::string base = plan_of(moe(2), experts("mxfp8")).digest;
  CHECK(base.size() == 32);
  CHECK(plan_of(moe(2), experts("mxfp8")).digest == base);
  // Another way to say the same.
  CHECK(plan_of(moe(2),
                "{configs: {other: {format: mxfp8}}, matchers: [{name: n, pattern: .experts., config: "
                "other}]}")
            .digest == base);
  CHECK(plan_of(moe(2), experts("nvfp4")).digest != base);
  CHECK(plan_of(moe(2), experts("mxfp8", ", bf16_layers: {last: 1}")).digest != base);
  CHECK(plan_of(moe(2), experts("mxfp8, fast_math: true")).digest != base);
  CHECK(plan_of(moe(3), experts("mxfp8")).digest != base);
  const std::string nvfp4 = plan_of(moe(2), experts("nvfp4")).digest;
  CHECK(plan_of(moe(2), experts("nvfp4, four_over_six: weights")).digest != nvfp4);
  CHECK(plan_of(moe(2), experts("nvfp4, scope: tensor")).digest != nvfp4);
}

TEST_CASE("the plan as JSON and as text") {
  const PrecisionPlan plan = plan_of(moe(1), experts("nvfp4", ", high_precision: [nothing]"));
  const nlohmann::json parsed = nlohmann::json::parse(plan.to_json());
  CHECK(parsed["digest"] == plan.digest);
  CHECK(parsed["contract"] == std::string(kContractVersion));
  CHECK(parsed["warnings"].size() == 1);
  REQUIRE(parsed["weights"].size() == plan.rows.size());
  for (const auto& weight : parsed["weights"]) {
    if (weight["name"] == "model.layers.0.mlp.experts.2.up_proj.weight") {
      CHECK(weight["format"] == "nvfp4");
      CHECK(weight["layout"] == "1x16");
      CHECK(weight["scope"] == "token");
      CHECK(weight["unit"] == "model.layers.0.mlp.experts.2.gate_up_proj");
      CHECK(weight["weight_decay"] == false);
    }
    if (weight["format"] == "bf16") {
      CHECK(weight["layout"].is_null());
      CHECK(weight["unit"].is_null());
    }
  }
  const std::string text = plan.to_text();
  CHECK(text.find("    3  model.layers.0.mlp.experts.*.up_proj.weight") != std::string::npos);
  CHECK(text.find("experts.2") == std::string::npos);
}

TEST_CASE("a model that cannot run is refused before planning") {
  ModelConfig config = moe(1);
  config.num_heads = 3;
  CHECK(exit_code(build_plan(config, PrecisionPart{}).status()) == ExitCode::kBadData);
}

namespace {

ModelConfig latent(MlaForm form) {
  ModelConfig config = moe(2);
  config.architecture = Architecture::kDeepseekV3;
  config.qk_norm = false;
  config.num_kv_heads = 4;
  config.mla = {32, 32, 16, 16, 16, true, form};
  config.moe_intermediate_size = 32;
  config.router_scoring = RouterScoring::kSigmoid;
  config.router_bias = true;
  config.num_shared_experts = 1;
  return config;
}

constexpr const char* kAll =
    "{configs: {q: {format: mxfp8}}, matchers: [{name: all, pattern: \"*\", config: q}]}";
constexpr const char* kNamed =
    "{configs: {q: {format: mxfp8}}, matchers: [{name: kv, pattern: \".kv_b_proj.\", config: q}, "
    "{name: shared, pattern: \"*.shared_experts.*\", config: q}, {name: all, pattern: \"*\", config: q}]}";

}  // namespace

TEST_CASE("kv_b_proj and shared experts stay BF16 and a router bias FP32 unless a pattern names them") {
  const PrecisionPlan plan = plan_of(latent(MlaForm::kAbsorbed), kAll);
  const std::string layer = "model.layers.1.";
  CHECK(row(plan, layer + "self_attn.q_a_proj.weight").format == WeightFormat::kMXFP8);
  CHECK(row(plan, layer + "self_attn.kv_a_proj_with_mqa.weight").format == WeightFormat::kMXFP8);
  CHECK(row(plan, layer + "mlp.experts.0.up_proj.weight").format == WeightFormat::kMXFP8);
  const PlanRow& kv_b = row(plan, layer + "self_attn.kv_b_proj.weight");
  CHECK(kv_b.format == WeightFormat::kBF16);
  CHECK(kv_b.reason.find("kv_b_proj") != std::string::npos);
  CHECK(row(plan, layer + "mlp.shared_experts.up_proj.weight").format == WeightFormat::kBF16);
  const PlanRow& bias = row(plan, layer + "mlp.gate.e_score_correction_bias");
  CHECK(bias.format == WeightFormat::kF32);
  CHECK_FALSE(bias.weight_decay);
  CHECK(plan.warnings.empty());

  const PrecisionPlan named = plan_of(latent(MlaForm::kPlain), kNamed);
  CHECK(row(named, layer + "self_attn.kv_b_proj.weight").format == WeightFormat::kMXFP8);
  CHECK(row(named, layer + "mlp.shared_experts.up_proj.weight").format == WeightFormat::kMXFP8);
  REQUIRE(named.warnings.size() == 1);
  CHECK(named.warnings[0].find("2 kv_b_proj weights are quantized") != std::string::npos);

  const auto refused = build_plan(latent(MlaForm::kAbsorbed), part(kNamed));
  REQUIRE_FALSE(refused.ok());
  CHECK(message_of(refused.status()).find("model.mla: absorbed") != std::string::npos);
}

TEST_CASE("the form of latent attention is part of the plan and its digest") {
  const PrecisionPlan plain = plan_of(latent(MlaForm::kPlain), kAll);
  const PrecisionPlan absorbed = plan_of(latent(MlaForm::kAbsorbed), kAll);
  CHECK(plain.mla == "plain");
  CHECK(plain.digest != absorbed.digest);
  CHECK(absorbed.to_json().find("\"mla\": \"absorbed\"") != std::string::npos);
  CHECK(absorbed.to_text().find("absorbed form") != std::string::npos);
  ModelConfig none = moe(2);
  none.mla.form = MlaForm::kPlain;
  CHECK(plan_of(none, "{}").digest == plan_of(moe(2), "{}").digest);
}
