// What a benchmark refuses, before it measures anything.
#include "bench/kernels.hpp"
#include "bench/memory.hpp"
#include "bench/random_policy.hpp"
#include "bench/rollout.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::bench;

namespace {

void refuse_print(const std::string& text) {
  CAPTURE(text);
  CHECK(text.empty());
}

std::string usage_of(const Status& status) {
  CHECK(exit_code(status) == ExitCode::kUsage);
  return std::string(message_of(status));
}

RolloutOptions rollout() {
  RolloutOptions options;
  options.shape = "tiny-moe";
  options.formats = {"bf16"};
  options.batches = {2};
  options.context = 64;
  options.steps = 4;
  return options;
}

}  // namespace

TEST_CASE("shapes have names or files") {
  for (const std::string& name : shape_names()) {
    const auto shape = find_shape(name);
    REQUIRE(shape.ok());
    CHECK(validate(shape->config).ok());
  }
  CHECK(usage_of(find_shape("qwen4").status()).find("qwen3-30b-a3b") != std::string::npos);
  const auto file = find_shape(std::string(ACCORD_TEST_DATA) + "/hf/qwen3_moe/config.json");
  REQUIRE(file.ok());
  CHECK(file->config.num_experts > 0);
}

TEST_CASE("fewer layers are the last ones") {
  ModelConfig config = find_shape("tiny-moe")->config;
  config.layer_is_moe = {false, true};
  CHECK(with_layers(config, 1).layer_is_moe == std::vector<bool>{true});
  CHECK(with_layers(config, 9) == config);
}

TEST_CASE("unknown operations and formats name the known ones") {
  KernelOptions kernels;
  kernels.op = "matmul";
  CHECK(usage_of(run_kernels(kernels, refuse_print).status()).find("attention") != std::string::npos);
  kernels.op = "adamw";  // the CPU's optimizer is not a kernel of its own
  CHECK(usage_of(run_kernels(kernels, refuse_print).status()).find("cpu") != std::string::npos);
  kernels.op = "";
  kernels.shapes = {"nothing"};
  usage_of(run_kernels(kernels, refuse_print).status());

  RolloutOptions options = rollout();
  options.formats = {"bf16", "fp8"};
  CHECK(usage_of(run_rollout(options, refuse_print).status()).find("nvfp4") != std::string::npos);
}

TEST_CASE("contexts that do not fit are refused") {
  RolloutOptions options = rollout();
  options.context = 1 << 20;
  CHECK(usage_of(run_rollout(options, refuse_print).status()).find("at most") != std::string::npos);
  options.context = 3;
  CHECK(usage_of(run_rollout(options, refuse_print).status()).find("too few") != std::string::npos);
}

TEST_CASE("memory is a device's") {
  CHECK(usage_of(run_memory({}, refuse_print).status()).find("cuda:N") != std::string::npos);
}

TEST_CASE("a recipe decides the formats") {
  const ModelConfig config = find_shape("tiny-moe")->config;
  const auto policy =
      planned_policy(config, std::string(ACCORD_SOURCE_DIR) + "/configs/quickstart-nvfp4.yaml");
  REQUIRE(policy.ok());
  CHECK(policy->plan.any(WeightFormat::kNVFP4));
  CHECK(planned_policy(config, "mxfp8")->plan.find("model.layers.0.self_attn.q_proj.weight")->format ==
        WeightFormat::kBF16);
  CHECK(planned_policy(config, "mxfp8")->plan.find("model.layers.0.mlp.experts.0.up_proj.weight")->format ==
        WeightFormat::kMXFP8);
  CHECK(planned_policy(find_shape("tiny")->config, "mxfp8")
            ->plan.find("model.layers.0.self_attn.q_proj.weight")
            ->format == WeightFormat::kMXFP8);
}

TEST_CASE("a rollout on the CPU times the steps it was asked for") {
  RolloutOptions options = rollout();
  options.formats = {"bf16", "nvfp4"};
  options.batches = {1, 3};
  options.threads = 1;
  const auto report = run_rollout(options, [](const std::string&) {});
  REQUIRE(report.ok());
  CHECK(report->layers == 2);
  REQUIRE(report->results.size() == 4);
  for (const RolloutResult& r : report->results) {
    CHECK(r.steps == 4);
    CHECK(r.seconds > 0.0);
    CHECK(r.prompt_seconds > 0.0);
    CHECK(r.forward_seconds + r.sampling_seconds <= r.seconds * 1.001);
    CHECK(r.mean_context > 48.0);
    CHECK(r.mean_context <= 64.0);
    CHECK(r.roofline_tokens_per_second > 0.0);
    CHECK(r.peak_bytes > 0);
  }
  CHECK(report->results[2].step_bytes < report->results[0].step_bytes);  // NVFP4 reads less
}
