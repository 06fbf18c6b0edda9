// The rollout engine on the device: bits do not depend on scheduling, and equal those of a packed forward as
// training runs it. tests/unit/rollout has the same for the CPU.
#include "rollout/engine.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hf_config.hpp"
#include "device_runner.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::rollout;
using gpu_test::checkpoint_policy;
using gpu_test::DevicePolicy;
using gpu_test::DeviceRunner;
using gpu_test::different;
using gpu_test::Gpu;
using gpu_test::must;
using gpu_test::Piece;
using gpu_test::random_policy;
using gpu_test::random_tokens;

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4};
constexpr int32_t kNewTokens = 24;

// Prompts around page borders, of one token, and long ones; all kinds of sampling; siblings.
std::vector<Request> mixed_requests(int64_t vocab) {
  std::vector<Request> requests;
  const int32_t lengths[] = {5, 16, 33, 150, 1, 47};
  for (size_t i = 0; i < std::size(lengths); ++i) {
    Request request;
    request.step = 2;
    request.prompt.id = 10 + i;
    request.prompt.tokens = random_tokens(vocab, lengths[i], 100 + i);
    request.num_samples = 1 + static_cast<int32_t>(i % 3);
    request.sampling.temperature = i % 2 == 0 ? 1.0F : 0.7F;
    request.sampling.max_new_tokens = kNewTokens;
    if (i % 2 == 0) request.sampling.stop_tokens = {3, 4};
    requests.push_back(request);
  }
  requests[1].sampling.top_p = 0.8F;
  requests[2].sampling.top_k = 20;
  requests[5].sampling.temperature = 0.0F;
  return requests;
}

struct Run {
  std::vector<Sample> samples;
  std::map<SampleKey, std::vector<uint8_t>> routing;  // where it is recorded
  EngineStats stats;
};

// A policy on the device and engines over it.
class Rollout {
 public:
  Rollout(const Gpu& gpu, DevicePolicy policy) : gpu_(gpu), policy_(std::move(policy)) {
    model_ = must(model::CudaModel::create(policy_.config, policy_.weights(), gpu.device(), gpu.stream()));
    must(model_->check_weights());
  }

  model::CudaModel& model() { return *model_; }
  const ModelConfig& config() const { return policy_.config; }
  const DevicePolicy& policy() const { return policy_; }

  std::unique_ptr<Engine> engine(EngineOptions options) {
    options.run_seed = 1234;
    return must(Engine::create(*model_, options));
  }

  Run generate(const EngineOptions& options, const std::vector<Request>& requests) {
    const auto made = engine(options);
    Run run;
    Callbacks callbacks;
    callbacks.on_sample = [&](const Sample& sample) { run.routing[sample.key] = sample.routing.bytes; };
    run.samples = must(made->generate(requests, callbacks));
    run.stats = made->stats();
    return run;
  }

  // Log-probabilities of the response, and the expert ids [positions][MoE layers, K] of all but the last
  // token, from one packed forward over all samples, with the tapes that a backward needs.
  void packed(const std::vector<Sample>& samples, const std::vector<float>& temperatures,
              std::vector<std::vector<float>>& logprobs, std::vector<std::vector<uint8_t>>& routing);

 private:
  const Gpu& gpu_;
  DevicePolicy policy_;
  std::unique_ptr<model::CudaModel> model_;
};

void Rollout::packed(const std::vector<Sample>& samples, const std::vector<float>& temperatures,
                     std::vector<std::vector<float>>& logprobs, std::vector<std::vector<uint8_t>>& routing) {
  const ModelConfig& c = policy_.config;
  std::vector<std::vector<int32_t>> inputs;
  std::vector<Piece> pieces;
  for (const Sample& sample : samples) {
    pieces.push_back(
        {static_cast<int32_t>(inputs.size()), 0, static_cast<int32_t>(sample.tokens.size()) - 1});
    inputs.emplace_back(sample.tokens.begin(), sample.tokens.end() - 1);
  }
  DeviceRunner runner(gpu_, *model_, inputs, /*page_seed=*/5);
  runner.run(pieces, /*tape=*/true);
  size_t first_row = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    const Sample& sample = samples[s];
    const auto rows = static_cast<int64_t>(inputs[s].size());
    const Memory logits = gpu_.upload(runner.logits(static_cast<int32_t>(s)));
    const Memory temperature = gpu_.upload(std::vector<float>(inputs[s].size(), temperatures[s]));
    const Memory tokens = gpu_.upload(std::vector<int32_t>(sample.tokens.begin() + 1, sample.tokens.end()));
    const Memory out = gpu_.allocate(inputs[s].size() * sizeof(float));
    kernels::cuda::token_logprobs({logits.data(), Dtype::kF32, rows, c.vocab_size, c.vocab_size},
                                  temperature.as<float>(), tokens.as<int32_t>(), out.as<float>(), nullptr,
                                  gpu_.handle());
    const std::vector<float> all = gpu_.download<float>(out, inputs[s].size());
    logprobs.emplace_back(all.begin() + sample.prompt_length - 1, all.end());
    std::vector<uint8_t>& ids = routing.emplace_back();
    const auto k = static_cast<size_t>(c.num_experts_per_token);
    for (size_t row = first_row; row < first_row + inputs[s].size(); ++row) {
      for (const std::vector<int32_t>& layer : runner.expert_ids()) {
        for (size_t i = 0; i < k && !layer.empty(); ++i) {
          ids.push_back(static_cast<uint8_t>(layer[row * k + i]));
        }
      }
    }
    first_row += inputs[s].size();
  }
}

void check_same(const std::vector<Sample>& got, const std::vector<Sample>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].key == want[i].key);
    CHECK(got[i].tokens == want[i].tokens);
    CHECK(different(got[i].logprobs, want[i].logprobs) == 0);
    CHECK(different(got[i].sampling_logprobs, want[i].sampling_logprobs) == 0);
    CHECK(got[i].finish == want[i].finish);
  }
}

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
  const Run want = rollout.generate({.record_routing = true}, requests);
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
    CHECK(sample.logprobs.size() > 0);
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
