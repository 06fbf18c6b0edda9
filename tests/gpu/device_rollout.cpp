#include "device_rollout.hpp"

#include <utility>

#include "device_runner.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "support/catch.hpp"

namespace gpu_test {

using namespace accord;
using namespace accord::rollout;

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
    request.sampling.max_new_tokens = 24;
    if (i % 2 == 0) request.sampling.stop_tokens = {3, 4};
    requests.push_back(request);
  }
  requests[1].sampling.top_p = 0.8F;
  requests[2].sampling.top_k = 20;
  requests[5].sampling.temperature = 0.0F;
  return requests;
}

Run generate(Engine& engine, const std::vector<Request>& requests) {
  Run run;
  Callbacks callbacks;
  callbacks.on_sample = [&](const Sample& sample) { run.routing[sample.key] = sample.routing.bytes; };
  run.samples = must(engine.generate(requests, callbacks));
  run.stats = engine.stats();
  return run;
}

Rollout::Rollout(const Gpu& gpu, DevicePolicy policy) : gpu_(gpu), policy_(std::move(policy)) {
  model_ = must(model::CudaModel::create(policy_.config, policy_.weights(), gpu.device(), gpu.stream()));
  must(model_->check_weights());
}

std::unique_ptr<Engine> Rollout::engine(EngineOptions options) {
  options.run_seed = 1234;
  return must(Engine::create(*model_, options));
}

Run Rollout::generate(const EngineOptions& options, const std::vector<Request>& requests) {
  const auto made = engine(options);
  return gpu_test::generate(*made, requests);
}

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

}  // namespace gpu_test
