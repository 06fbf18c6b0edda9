// The engine over real models: bits do not depend on scheduling, and equal a training-style forward.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "base/philox.hpp"
#include "checkpoint/safetensors.hpp"
#include "rollout/engine.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

using namespace accord;
using namespace accord::rollout;
using accord::rollout::testing::sequence_logprobs;
using accord::rollout::testing::tiny_config;
using accord::rollout::testing::TinyModel;

namespace {

struct ModelCase {
  std::string name;
  Architecture architecture;
  WeightFormat format;
  Dtype compute_dtype;
};

const std::vector<ModelCase>& model_cases() {
  static const std::vector<ModelCase> cases = {
      {"qwen3 moe bf16", Architecture::kQwen3Moe, WeightFormat::kBF16, Dtype::kBF16},
      {"qwen3 moe mxfp8", Architecture::kQwen3Moe, WeightFormat::kMXFP8, Dtype::kBF16},
      {"llama bf16", Architecture::kLlama, WeightFormat::kBF16, Dtype::kBF16},
      {"llama mxfp8", Architecture::kLlama, WeightFormat::kMXFP8, Dtype::kBF16},
      {"qwen3 dense float32", Architecture::kQwen3, WeightFormat::kBF16, Dtype::kF32},
  };
  return cases;
}

std::vector<Request> requests_for(int64_t vocab) {
  std::vector<Request> requests;
  const int32_t lengths[] = {5, 16, 33, 150, 1, 47};
  for (size_t i = 0; i < std::size(lengths); ++i) {
    Request request;
    request.step = 2;
    request.prompt.id = 10 + i;
    PhiloxStream random(i, 5);
    for (int32_t t = 0; t < lengths[i]; ++t) {
      request.prompt.tokens.push_back(static_cast<int32_t>(random.next_below(static_cast<uint64_t>(vocab))));
    }
    request.num_samples = 1 + static_cast<int32_t>(i % 3);
    request.sampling.temperature = i % 2 == 0 ? 1.0F : 0.7F;
    request.sampling.max_new_tokens = 24;
    request.sampling.stop_tokens = {3, 4};
    requests.push_back(request);
  }
  requests[1].sampling.top_p = 0.8F;
  requests[2].sampling.top_k = 20;
  requests[5].sampling.temperature = 0.0F;
  return requests;
}

std::vector<Sample> generate(TinyModel& tiny, EngineOptions options, const std::vector<Request>& requests,
                             EngineStats* stats = nullptr) {
  options.run_seed = 1234;
  auto engine = Engine::create(tiny.model(), options, tiny.pool());
  REQUIRE(engine.ok());
  // Whatever the memory holds must not matter: NaN in every dtype.
  std::memset((*engine)->cache_memory().data(), 0xff, (*engine)->cache_memory().size());
  auto samples = (*engine)->generate(requests);
  INFO((samples.ok() ? std::string() : std::string(message_of(samples.status()))));
  REQUIRE(samples.ok());
  if (stats != nullptr) *stats = (*engine)->stats();
  return *samples;
}

void check_same(const std::vector<Sample>& got, const std::vector<Sample>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].key == want[i].key);
    CHECK(got[i].tokens == want[i].tokens);
    CHECK(got[i].logprobs == want[i].logprobs);
    CHECK(got[i].sampling_logprobs == want[i].sampling_logprobs);
    CHECK(got[i].finish == want[i].finish);
  }
}

}  // namespace

TEST_CASE("model samples do not depend on batching, chunks, preemption, threads or splitting") {
  for (const ModelCase& c : model_cases()) {
    CAPTURE(c.name);
    TinyModel one(tiny_config(c.architecture), c.format, c.compute_dtype, 1, 77);
    TinyModel three(tiny_config(c.architecture), c.format, c.compute_dtype, 3, 77);
    const auto requests = requests_for(one.model().config().vocab_size);
    const auto want = generate(one, {}, requests);
    check_same(generate(one, {.max_batch_rows = 1, .prefill_chunk = 1}, requests), want);
    check_same(generate(three, {.max_batch_rows = 13, .prefill_chunk = 7}, requests), want);
    check_same(generate(one, {.max_batch_rows = 300, .prefill_chunk = 300}, requests), want);
    EngineStats stats;
    check_same(generate(three, {.max_batch_rows = 64, .prefill_chunk = 50, .kv_cache_tokens = 176}, requests,
                        &stats),
               want);
    CHECK(stats.preemptions > 0);

    std::vector<Sample> split;  // one engine per sample
    for (const Request& request : requests) {
      for (int32_t i = 0; i < request.num_samples; ++i) {
        Request single = request;
        single.num_samples = 1;
        single.first_sample_index = static_cast<uint32_t>(i);
        split.push_back(generate(one, {.max_batch_rows = 40, .prefill_chunk = 16}, {single}).at(0));
      }
    }
    check_same(split, want);

    std::set<std::vector<int32_t>> distinct;
    for (const Sample& sample : want) distinct.insert(sample.tokens);
    CHECK(distinct.size() == want.size() - 2);  // the three greedy samples are one
  }
}

TEST_CASE("sampled log-probs equal those of a whole-sequence forward bit by bit") {
  for (const ModelCase& c : model_cases()) {
    CAPTURE(c.name);
    TinyModel tiny(tiny_config(c.architecture), c.format, c.compute_dtype, 2, 78);
    const auto requests = requests_for(tiny.model().config().vocab_size);
    const auto samples =
        generate(tiny, {.max_batch_rows = 32, .prefill_chunk = 20, .kv_cache_tokens = 320}, requests);
    for (const Sample& sample : samples) {
      const auto request = std::find_if(requests.begin(), requests.end(), [&](const Request& r) {
        return r.prompt.id == sample.key.prompt_id;
      });
      const float t = request->sampling.temperature;
      const auto all = sequence_logprobs(tiny.model(), sample.tokens, t == 0.0F ? 1.0F : t);
      const std::vector<float> response(all.begin() + sample.prompt_length - 1, all.end());
      CHECK(response == sample.logprobs);
    }
  }
}

TEST_CASE("greedy continuations equal the reference in float32") {
  for (const std::string name : {"llama_tied", "qwen3_dense_tied", "qwen3_moe"}) {
    CAPTURE(name);
    const std::string dir = std::string(ACCORD_TEST_DATA) + "/hf/" + name;
    const auto golden = checkpoint::SafetensorsFile::open(dir + "/golden.safetensors");
    REQUIRE(golden.ok());
    std::vector<int32_t> greedy(32);
    REQUIRE(golden->read_i32("greedy", greedy).ok());
    TinyModel tiny(dir, Dtype::kF32, 1);
    Request request;
    request.prompt.tokens.assign(greedy.begin(), greedy.begin() + 8);
    request.num_samples = 2;
    request.sampling.temperature = 0.0F;
    request.sampling.max_new_tokens = 24;
    for (const Sample& sample : generate(tiny, {.max_batch_rows = 8, .prefill_chunk = 3}, {request})) {
      CHECK(sample.tokens == greedy);
    }
  }
}

TEST_CASE("recorded routing is what the model routes by, whatever the schedule") {
  TinyModel tiny(tiny_config(Architecture::kQwen3Moe), WeightFormat::kMXFP8, Dtype::kBF16, 1, 79);
  const auto requests = requests_for(tiny.model().config().vocab_size);
  const auto record = [&](EngineOptions options) {
    options.record_routing = true;
    auto engine = Engine::create(tiny.model(), options, tiny.pool());
    REQUIRE(engine.ok());
    std::map<SampleKey, std::vector<int32_t>> routed;
    Callbacks callbacks;
    callbacks.on_sample = [&](const Sample& sample) {
      const std::vector<uint8_t>& ids = sample.routing.bytes;
      CHECK(ids.size() == (sample.tokens.size() - 1) * 3 * 2);
      CHECK(std::all_of(ids.begin(), ids.end(), [](uint8_t id) { return id < 8; }));
      routed[sample.key].assign(ids.begin(), ids.end());
    };
    REQUIRE((*engine)->generate(requests, callbacks).ok());
    return routed;
  };
  const auto wide = record({});
  CHECK(wide.size() == 12);
  CHECK(record({.max_batch_rows = 9, .prefill_chunk = 5, .kv_cache_tokens = 176}) == wide);
}
