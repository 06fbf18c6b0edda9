// The forward on the device: against the CPU's, and a row's bits never depend on chunking, packing, pages or
// other rows (docs/contract.md, section 9).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>

#include "device/buffer.hpp"
#include "device/thread_pool.hpp"
#include "device_runner.hpp"
#include "support/catch.hpp"

using namespace accord;
using gpu_test::checkpoint_policy;
using gpu_test::DevicePolicy;
using gpu_test::DeviceRunner;
using gpu_test::different;
using gpu_test::Gpu;
using gpu_test::must;
using gpu_test::random_policy;
using gpu_test::random_tokens;

namespace {

std::unique_ptr<model::CudaModel> make_model(const Gpu& gpu, const DevicePolicy& policy) {
  auto model = must(model::CudaModel::create(policy.config, policy.weights(), gpu.device(), gpu.stream()));
  must(model->check_weights());
  return model;
}

// Logits of one sequence on the CPU.
std::vector<float> cpu_logits(const DevicePolicy& policy, Dtype dtype, std::vector<int32_t> tokens) {
  ThreadPool pool(2);
  const ModelConfig& c = policy.config;
  const auto model = must(model::Model::create(c, policy.host_weights(), dtype, pool));
  const auto n = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<int32_t> pages;
  for (int32_t at = 0; at < n; at += model::kPageSize) pages.push_back(at);
  const std::vector<model::Segment> segments{{0, static_cast<int32_t>(n), 0, pages.data()}};
  const model::Batch batch{tokens, rows, rows, segments};
  Buffer x_memory, k, v, out_memory;
  const MatrixView x = x_memory.matrix(dtype, n, c.hidden_size);
  model->embed(batch, x);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    must(model->layer_forward(layer, batch, model::kv_layer(c, dtype, n, k, v), x, {}, nullptr));
  }
  const MatrixView out = out_memory.matrix(Dtype::kF32, n, c.vocab_size);
  model->logits(x, rows, out);
  return {out.row<float>(0), out.row<float>(0) + n * c.vocab_size};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0, norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(sum / norm);
}

// As near to the CPU's float32 forward over the same bytes as the CPU's bfloat16 forward is.
void check_against_cpu(const Gpu& gpu, const DevicePolicy& policy) {
  const std::vector<int32_t> tokens = random_tokens(policy.config.vocab_size, 60, 3);
  const auto model = make_model(gpu, policy);
  DeviceRunner runner(gpu, *model, {tokens}, 7);
  runner.run({{0, 0, static_cast<int32_t>(tokens.size())}});
  const std::vector<float> exact = cpu_logits(policy, Dtype::kF32, tokens);
  const double on_device = distance(runner.logits(0), exact);
  const double on_cpu = distance(cpu_logits(policy, Dtype::kBF16, tokens), exact);
  std::printf("distance to float32: device %.2e, CPU %.2e\n", on_device, on_cpu);
  CHECK(on_device <= 1.5 * on_cpu + 1e-3);
  CHECK(on_device > 0.0);
}

void check_arrangements(const Gpu& gpu, const DevicePolicy& policy, int32_t length) {
  const ModelConfig& c = policy.config;
  const auto model = make_model(gpu, policy);
  const std::vector<int32_t> text = random_tokens(c.vocab_size, length, 1);
  DeviceRunner whole(gpu, *model, {text}, 0);
  whole.run({{0, 0, length}}, /*tape=*/true);
  const std::vector<float> reference = whole.logits(0);
  const auto ids = whole.expert_ids();
  REQUIRE(std::all_of(reference.begin(), reference.end(), [](float x) { return std::isfinite(x); }));
  {
    INFO("without a tape");
    DeviceRunner runner(gpu, *model, {text}, 3);
    runner.run({{0, 0, length}});
    CHECK(different(runner.logits(0), reference) == 0);
  }
  {
    INFO("chunked prefill");
    DeviceRunner runner(gpu, *model, {text}, 21);
    for (int32_t at = 0, i = 0; at < length; ++i) {
      const int32_t sizes[] = {1, 7, 3, 33, 2, 64, 19, 300};
      const int32_t count = std::min(sizes[i % 8], length - at);
      runner.run({{0, at, count}});
      at += count;
    }
    CHECK(different(runner.logits(0), reference) == 0);
  }
  {
    INFO("token by token, beside others");
    const int32_t start = std::max(0, length - 90);
    DeviceRunner runner(gpu, *model, {text, random_tokens(c.vocab_size, length, 2)}, 22);
    runner.run({{1, 0, 11}, {0, 0, std::max(start, 1)}});
    for (int32_t at = std::max(start, 1); at < length; ++at) {
      runner.run({{0, at, 1}, {1, at - start + 11, 1}});
    }
    CHECK(different(runner.logits(0), reference) == 0);
  }
  {
    INFO("packed with others");
    DeviceRunner runner(gpu, *model,
                        {random_tokens(c.vocab_size, 31, 2), text, random_tokens(c.vocab_size, 77, 3), text},
                        23);
    runner.run({{2, 0, 70}, {0, 0, 31}, {1, 0, 17}, {3, 0, length}}, true);
    runner.run({{1, 17, 1}, {2, 70, 1}, {1, 18, 39}, {2, 71, 6}});
    runner.run({{2, 0, 77}, {1, 57, length - 57}}, true);
    CHECK(different(runner.logits(1), reference) == 0);
    CHECK(different(runner.logits(3), reference) == 0);
  }
  if (c.num_experts > 0) {
    INFO("replayed");
    DeviceRunner runner(gpu, *model, {text}, 24);
    runner.run({{0, 0, length}}, false, &ids);
    CHECK(different(runner.logits(0), reference) == 0);
  }
}

ModelConfig small_config(bool moe, int64_t head_dim) {
  ModelConfig c;
  c.architecture = moe ? Architecture::kQwen3Moe : Architecture::kLlama;
  c.vocab_size = 200;
  c.hidden_size = 96;
  c.num_layers = 2;
  c.num_heads = 6;
  c.num_kv_heads = 2;
  c.head_dim = head_dim;
  c.intermediate_size = 160;
  c.layer_is_moe = {moe, moe};
  c.qk_norm = moe;
  c.tie_word_embeddings = !moe;
  c.max_position_embeddings = 2048;
  if (moe) {
    c.num_experts = 8;
    c.num_experts_per_token = 3;
    c.moe_intermediate_size = 64;
  } else {
    c.rope_scaling = {RopeKind::kLlama3, 8.0, 1.0, 4.0, 64};
  }
  return c;
}

// Latent attention, a dense layer, and a mixture of experts in groups with shared experts.
ModelConfig latent_config(MlaForm form, int64_t lora, int64_t nope, int64_t rope, int64_t v) {
  ModelConfig c = small_config(true, rope);
  c.architecture = Architecture::kDeepseekV3;
  c.qk_norm = false;
  c.num_layers = 3;
  c.layer_is_moe = {false, true, true};
  c.num_heads = 5;
  c.num_kv_heads = 5;
  c.mla = {32, lora, nope, rope, v, true, form};
  c.router_scoring = RouterScoring::kSigmoid;
  c.router_bias = true;
  c.num_expert_groups = 4;
  c.num_chosen_groups = 2;
  c.routed_scaling_factor = 2.5;
  c.num_shared_experts = 1;
  c.rope_scaling.kind = RopeKind::kYarn;
  c.rope_scaling.factor = 4.0;
  c.rope_scaling.original_max_position = 64;
  c.rope_scaling.mscale = 1.0;
  c.rope_scaling.mscale_all_dim = 0.7;
  return c;
}

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4};

}  // namespace

TEST_CASE("Device forward of the golden models agrees with the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const char* name : {"qwen3_moe", "qwen3_dense_tied", "llama_tied", "deepseek_v3_mla"}) {
    for (const WeightFormat format : kFormats) {
      CAPTURE(name, static_cast<int>(format));
      check_against_cpu(*gpu, checkpoint_policy(*gpu, name, format));
    }
  }
}

TEST_CASE("Device logits keep their bits (dense)") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const WeightFormat format : kFormats) {
    CAPTURE(static_cast<int>(format));
    check_arrangements(*gpu, random_policy(*gpu, small_config(false, 64), format, 11), 150);
  }
  check_arrangements(*gpu, random_policy(*gpu, small_config(false, 16), WeightFormat::kBF16, 12), 150);
}

TEST_CASE("Device logits keep their bits (mixture of experts)") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const WeightFormat format : kFormats) {
    CAPTURE(static_cast<int>(format));
    check_arrangements(*gpu, random_policy(*gpu, small_config(true, 32), format, 13), 150);
  }
}

TEST_CASE("Device logits keep their bits over several splits of the context") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  check_arrangements(*gpu, random_policy(*gpu, small_config(true, 128), WeightFormat::kMXFP8, 14), 1100);
}

TEST_CASE("Device logits keep their bits (latent attention)") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const MlaForm form : {MlaForm::kPlain, MlaForm::kAbsorbed}) {
    CAPTURE(mla_form_name(form));
    const DevicePolicy small =
        random_policy(*gpu, latent_config(form, 32, 32, 16, 32), WeightFormat::kMXFP8, 15);
    check_arrangements(*gpu, small, 150);
    check_against_cpu(*gpu, small);
    check_arrangements(
        *gpu, random_policy(*gpu, latent_config(form, 512, 128, 64, 128), WeightFormat::kNVFP4, 16), 600);
  }
}

TEST_CASE("A device model refuses shapes that its kernels do not take") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const DevicePolicy policy = random_policy(*gpu, small_config(false, 24), WeightFormat::kBF16, 17);
  const auto model = model::CudaModel::create(policy.config, policy.weights(), gpu->device(), gpu->stream());
  REQUIRE_FALSE(model.ok());
  CHECK(message_of(model.status()).find("attention heads of 24") != std::string::npos);
}

TEST_CASE("A device model names a weight that it cannot multiply") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  DevicePolicy policy = random_policy(*gpu, small_config(false, 64), WeightFormat::kMXFP8, 18);
  const auto model = make_model(*gpu, policy);
  const auto& entries = policy.manifest.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(), [](const WeightEntry& e) {
    return e.name == "model.layers.1.self_attn.o_proj.weight";
  });
  REQUIRE(entry != entries.end());
  const uint8_t huge = 254;
  must(gpu->stream().copy(policy.arena.as<uint8_t>() + entry->scale_offset + 3, &huge, 1));
  const Status status = model->check_weights();
  REQUIRE_FALSE(status.ok());
  CHECK(std::string(message_of(status)).find("model.layers.1.self_attn.o_proj.weight") != std::string::npos);
}

TEST_CASE("products in tiles of rows have the bits of others") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ModelConfig config = small_config(false, 16);
  config.intermediate_size = 4096;  // gate and up: tiles of 512 rows
  for (const WeightFormat format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    check_arrangements(*gpu, random_policy(*gpu, config, format, 9), 560);
  }
}

TEST_CASE("experts kept in fragments have the bits of others and follow the weights") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ModelConfig config = small_config(true, 32);
  config.hidden_size = 256;
  config.moe_intermediate_size = 256;
  for (const WeightFormat format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    CAPTURE(static_cast<int>(format));
    const DevicePolicy policy = random_policy(*gpu, config, format, 19);
    const auto plain = make_model(*gpu, policy);
    auto kept = must(model::CudaModel::create(policy.config, policy.weights(), gpu->device(), gpu->stream()));
    must(kept->keep_expert_fragments());
    must(kept->check_weights());
    const int64_t quantized = 3 * 8 * 2 * 256 * 256 * (format == WeightFormat::kNVFP4 ? 9 : 33) /
                              (format == WeightFormat::kNVFP4 ? 16 : 32);
    CHECK(model::expert_fragment_bytes(policy.manifest) == quantized);
    const std::vector<int32_t> text = random_tokens(config.vocab_size, 40, 4);
    const auto logits = [&](model::CudaModel& model) {
      DeviceRunner runner(*gpu, model, {text}, 0);
      runner.run({{0, 0, 37}});  // few rows per expert
      for (int32_t at = 37; at < 40; ++at) runner.run({{0, at, 1}});
      return runner.logits(0);
    };
    const std::vector<float> before = logits(*kept);
    CHECK(different(before, logits(*plain)) == 0);
    const DevicePolicy other = random_policy(*gpu, config, format, 20);
    must(gpu->stream().copy(policy.arena.data(), other.arena.data(), policy.arena.bytes()));
    must(plain->check_weights());
    must(kept->check_weights());
    const std::vector<float> after = logits(*kept);
    CHECK(different(after, before) > 0);
    CHECK(different(after, logits(*plain)) == 0);
  }
}
