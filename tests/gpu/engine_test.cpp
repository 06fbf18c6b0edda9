// The rollout engine on the device: bits do not depend on scheduling, and equal those of a packed forward as
// training runs it. tests/unit/rollout has the same for the CPU.
#include "rollout/engine.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hf_config.hpp"
#include "device_rollout.hpp"
#include "device_runner.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::rollout;
using gpu_test::check_same;
using gpu_test::checkpoint_policy;
using gpu_test::DevicePolicy;
using gpu_test::different;
using gpu_test::Gpu;
using gpu_test::mixed_requests;
using gpu_test::must;
using gpu_test::random_policy;
using gpu_test::random_tokens;
using gpu_test::Rollout;
using gpu_test::Run;

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4};
float temperature_of(const std::vector<Request>& requests, const Sample& sample) {
  const auto request = std::find_if(requests.begin(), requests.end(),
                                    [&](const Request& r) { return r.prompt.id == sample.key.prompt_id; });
  const float t = request->sampling.temperature;
  return t == 0.0F ? 1.0F : t;
}

// Everything about one policy: schedules, then a packed forward.
void check_policy(const Gpu& gpu, DevicePolicy policy) {
  Rollout rollout(gpu, std::move(policy));
  const bool moe = rollout.config().num_experts > 0;
  const auto requests = mixed_requests(rollout.config().vocab_size);
  // Each step by itself, kernel by kernel.
  const Run want =
      rollout.generate({.cuda_graphs = false, .steps_ahead = false, .record_routing = true}, requests);
  CHECK(want.stats.preemptions == 0);
  struct Case {
    int32_t rows, chunk;
    int64_t cache;
  };
  // 176 rows are a little more than what the longest sequence (150 + 24 - 1) needs.
  for (const Case& c :
       {Case{1, 1, 65536}, {13, 3, 65536}, {64, 16, 65536}, {300, 256, 65536}, {64, 50, 176}}) {
    CAPTURE(c.rows);
    CAPTURE(c.chunk);
    CAPTURE(c.cache);
    const Run run = rollout.generate({.max_batch_rows = c.rows,
                                      .prefill_chunk = c.chunk,
                                      .kv_cache_tokens = c.cache,
                                      .record_routing = c.rows != 13},
                                     requests);
    check_same(run.samples, want.samples);
    if (c.rows != 13) CHECK(run.routing == want.routing);
    if (c.cache == 176) CHECK(run.stats.preemptions > 0);
    CHECK(run.stats.graph_replays > 0);
    CHECK(run.stats.forward_seconds > 0);
    CHECK(run.stats.sample_seconds > 0);
    CHECK(run.stats.forward_seconds + run.stats.sample_seconds <= run.stats.total_seconds);
  }

  std::vector<float> temperatures;
  for (const Sample& sample : want.samples) temperatures.push_back(temperature_of(requests, sample));
  std::vector<std::vector<float>> logprobs;
  std::vector<std::vector<uint8_t>> routing;
  rollout.packed(want.samples, temperatures, logprobs, routing);
  for (size_t i = 0; i < want.samples.size(); ++i) {
    CAPTURE(i);
    const Sample& sample = want.samples[i];
    CHECK(!sample.logprobs.empty());
    CHECK(different(sample.logprobs, logprobs[i]) == 0);
    const std::vector<uint8_t>& recorded = want.routing.at(sample.key);
    CHECK(recorded.empty() == !moe);
    CHECK(different(recorded, routing[i]) == 0);
  }
}

}  // namespace

TEST_CASE("Device samples keep their bits whatever the schedule and equal a packed forward") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const char* name : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"}) {
    for (const WeightFormat format : kFormats) {
      CAPTURE(name);
      CAPTURE(static_cast<int>(format));
      check_policy(*gpu, checkpoint_policy(*gpu, name, format));
    }
  }
}

TEST_CASE("Device samples of latent attention keep their bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ModelConfig config = must(checkpoint::read_hf_config(gpu_test::test_data() + "/hf/deepseek_v3_mla")).model;
  for (const MlaForm form : {MlaForm::kPlain, MlaForm::kAbsorbed}) {
    CAPTURE(mla_form_name(form));
    config.mla.form = form;
    check_policy(*gpu, random_policy(*gpu, config, WeightFormat::kMXFP8, 31));
  }
}

TEST_CASE("Device engine draws for more samples than a batch has rows") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  Rollout rollout(*gpu, checkpoint_policy(*gpu, "llama_tied", WeightFormat::kBF16));
  // Both prompts end in one forward, whose draws then come in pieces.
  std::vector<Request> requests(2);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.id = 3 + i;
    requests[i].prompt.tokens =
        random_tokens(rollout.config().vocab_size, 2 + static_cast<int32_t>(i), 9 + i);
    requests[i].num_samples = 20;
    requests[i].sampling.max_new_tokens = 6;
  }
  const Run wide = rollout.generate({}, requests);
  check_same(rollout.generate({.max_batch_rows = 7, .prefill_chunk = 7}, requests).samples, wide.samples);
  CHECK(wide.samples.size() == 40);
}

TEST_CASE("Device engine names the sample whose logits are not finite") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  Rollout rollout(*gpu, checkpoint_policy(*gpu, "llama_tied", WeightFormat::kBF16));
  const auto& entries = rollout.policy().manifest.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [](const WeightEntry& e) { return e.name == "model.norm.weight"; });
  REQUIRE(entry != entries.end());
  auto* const bytes = rollout.policy().arena.as<std::byte>() + entry->data_offset;
  const auto engine = rollout.engine({});
  engine->set_weight_version(9);
  Request request;
  request.step = 7;
  request.prompt.id = 77;
  request.prompt.tokens = random_tokens(rollout.config().vocab_size, 5, 1);
  request.num_samples = 2;
  request.sampling.max_new_tokens = 4;
  must(gpu->stream().fill(bytes, 0x7f, static_cast<size_t>(entry->data_bytes)));  // NaN
  const auto failed = engine->generate(std::vector<Request>{request});
  REQUIRE(!failed.ok());
  const std::string text(message_of(failed.status()));
  INFO(text);
  CHECK(text.find("step 7, prompt 77, sample 0, position 5, weight version 9") != std::string::npos);
  CHECK(text.find("the logit of token 0 is") != std::string::npos);
  CHECK(text.find("nan") != std::string::npos);

  must(gpu->stream().copy(bytes, rollout.policy().host->data() + entry->data_offset,
                          static_cast<size_t>(entry->data_bytes)));
  const auto again = must(engine->generate(std::vector<Request>{request}));
  check_same(again, rollout.generate({}, {request}).samples);
}

TEST_CASE("Device engine says how much memory its cache wanted") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  Rollout rollout(*gpu, checkpoint_policy(*gpu, "llama_tied", WeightFormat::kBF16));
  CHECK(rollout.engine({})->cache_memory().empty());
  const auto engine =
      Engine::create(rollout.model(), EngineOptions{.kv_cache_tokens = (int64_t{1} << 31) - 17});
  REQUIRE(!engine.ok());
  const std::string text(message_of(engine.status()));
  INFO(text);
  CHECK(exit_code(engine.status()) == ExitCode::kUnavailable);
  CHECK(text.find("no memory for a KV cache of 2147483632 tokens") != std::string::npos);
  CHECK(text.find("lower kv_cache_tokens") != std::string::npos);
}
