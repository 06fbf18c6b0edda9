#include "rollout/engine.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "base/philox.hpp"
#include "fake_policy.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::rollout;
using accord::rollout::testing::AheadPolicy;
using accord::rollout::testing::FakePolicy;
using accord::rollout::testing::reference_sample;

namespace {

constexpr uint64_t kSeed = 42;

Request request_of(uint64_t id, int32_t prompt_length, int32_t num_samples, int32_t max_new) {
  Request request;
  request.step = 7;
  request.prompt.id = id;
  PhiloxStream random(id, 1);
  for (int32_t i = 0; i < prompt_length; ++i) {
    request.prompt.tokens.push_back(static_cast<int32_t>(random.next_below(FakePolicy::kVocab)));
  }
  request.num_samples = num_samples;
  request.sampling.max_new_tokens = max_new;
  request.sampling.stop_tokens = {5};
  return request;
}

// Prompts around page borders, of one token, and long ones; all kinds of sampling.
std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  const int32_t lengths[] = {1, 15, 16, 17, 31, 32, 33, 90, 3, 48};
  for (size_t i = 0; i < std::size(lengths); ++i) {
    requests.push_back(request_of(100 + i, lengths[i], 1 + static_cast<int32_t>(i % 5), 30));
  }
  requests[2].sampling.temperature = 0.0F;
  requests[3].sampling.top_p = 0.7F;
  requests[4].sampling.top_k = 6;
  requests[5].sampling.temperature = 0.5F;
  requests[6].sampling.max_new_tokens = 1;
  requests[7].first_sample_index = 3;
  return requests;
}

struct TestEngine {
  // `steps_ahead`: over a policy that can, as a device's.
  explicit TestEngine(EngineOptions options, bool steps_ahead = false, int threads = 1,
                      Detokenize detokenize = {})
      : pool(threads) {
    options.run_seed = kSeed;
    std::unique_ptr<Policy> owned;
    if (steps_ahead) {
      auto made = std::make_unique<AheadPolicy>(pool);
      ahead = made.get();
      policy = &made->fake;
      owned = std::move(made);
    } else {
      auto made = std::make_unique<FakePolicy>(pool);
      policy = made.get();
      owned = std::move(made);
    }
    auto created = Engine::create(std::move(owned), options, std::move(detokenize));
    REQUIRE(created.ok());
    engine = std::move(*created);
  }
  ThreadPool pool;
  FakePolicy* policy = nullptr;
  AheadPolicy* ahead = nullptr;  // or null
  std::unique_ptr<Engine> engine;
};

std::vector<Sample> generate(Engine& engine, const std::vector<Request>& requests) {
  auto samples = engine.generate(requests);
  INFO((samples.ok() ? std::string() : std::string(message_of(samples.status()))));
  REQUIRE(samples.ok());
  return *samples;
}

void check_equal(const Sample& got, const Sample& want) {
  CAPTURE(got.key.prompt_id);
  CAPTURE(got.key.sample_index);
  CHECK(got.key == want.key);
  CHECK(got.tokens == want.tokens);
  CHECK(got.prompt_length == want.prompt_length);
  CHECK(got.finish == want.finish);
  CHECK(got.logprobs == want.logprobs);
  CHECK(got.sampling_logprobs == want.sampling_logprobs);
}

void check_reference(const std::vector<Sample>& samples, const std::vector<Request>& requests) {
  size_t next = 0;
  for (const Request& request : requests) {
    for (int32_t i = 0; i < request.num_samples; ++i) {
      REQUIRE(next < samples.size());
      check_equal(samples[next++],
                  reference_sample(request, request.first_sample_index + static_cast<uint32_t>(i), kSeed));
    }
  }
  CHECK(next == samples.size());
}

bool mentions(const Status& status, const std::string& text) {
  INFO(std::string(message_of(status)));
  return std::string(message_of(status)).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("samples do not depend on batch rows, prefill chunk, cache size or threads") {
  const auto requests = mixed_requests();
  struct Case {
    int32_t rows, chunk;
    int64_t cache;
    int threads;
  };
  // 128 rows are what the longest sequence (90 + 30 - 1) needs.
  const Case cases[] = {{256, 256, 65536, 1}, {1, 1, 65536, 1},   {7, 3, 4096, 2},   {64, 16, 1024, 1},
                        {256, 256, 128, 1},   {16, 100, 128, 1},  {5, 5, 128, 3},    {256, 7, 160, 1},
                        {33, 64, 256, 2},     {256, 256, 320, 1}, {256, 256, 480, 1}};
  for (const Case& c : cases) {
    CAPTURE(c.rows);
    CAPTURE(c.chunk);
    CAPTURE(c.cache);
    const EngineOptions options{
        .max_batch_rows = c.rows, .prefill_chunk = c.chunk, .kv_cache_tokens = c.cache};
    TestEngine ahead(options, /*steps_ahead=*/true, c.threads);
    check_reference(generate(*ahead.engine, requests), requests);
    CHECK(ahead.ahead->unknown_tokens > 0);
    CHECK(ahead.engine->stats().peak_cache_rows <= c.cache);
    EngineOptions in_turn = options;
    in_turn.steps_ahead = false;
    TestEngine waits(in_turn, /*steps_ahead=*/true, c.threads);
    check_reference(generate(*waits.engine, requests), requests);
    CHECK(waits.ahead->unknown_tokens == 0);
    TestEngine test(options, /*steps_ahead=*/false, c.threads);
    check_reference(generate(*test.engine, requests), requests);
    CHECK(test.policy->largest_batch <= c.rows);
    CHECK(test.engine->stats().peak_cache_rows <= c.cache);
    if (c.cache == 128 && c.rows == 256) {
      CHECK(test.engine->stats().preemptions > 0);
      CHECK(test.engine->stats().recomputed_rows > 0);
    }
    if (c.cache == 65536) {
      CHECK(test.engine->stats().preemptions == 0);
      CHECK(test.engine->stats().recomputed_rows == 0);
    }
  }
}

TEST_CASE("random schedules under a tight cache equal the reference and end") {
  PhiloxStream random(99, 0);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    std::vector<Request> requests;
    int64_t longest = 0;
    const auto count = 1 + random.next_below(12);
    for (uint64_t i = 0; i < count; ++i) {
      const auto prompt = static_cast<int32_t>(1 + random.next_below(70));
      const auto max_new = static_cast<int32_t>(1 + random.next_below(40));
      requests.push_back(
          request_of(1000 + i, prompt, static_cast<int32_t>(1 + random.next_below(6)), max_new));
      longest = std::max<int64_t>(longest, prompt + max_new - 1);
    }
    const EngineOptions options{.max_batch_rows = static_cast<int32_t>(1 + random.next_below(40)),
                                .prefill_chunk = static_cast<int32_t>(1 + random.next_below(40)),
                                .kv_cache_tokens = longest + static_cast<int64_t>(random.next_below(100))};
    for (const bool ahead : {false, true}) {
      CAPTURE(ahead);
      TestEngine test(options, ahead);
      check_reference(generate(*test.engine, requests), requests);
    }
  }
}

TEST_CASE("siblings finish in a cache that holds exactly one of them") {
  for (const int32_t prompt_length : {1, 15, 16, 17, 40, 47, 48, 49}) {
    for (const int32_t max_new : {1, 2, 9, 16, 17, 30}) {
      CAPTURE(prompt_length);
      CAPTURE(max_new);
      auto requests =
          std::vector<Request>{request_of(1, prompt_length, 4, max_new), request_of(2, 1, 3, max_new)};
      for (Request& request : requests) request.sampling.stop_tokens.clear();
      for (const bool ahead : {false, true}) {
        CAPTURE(ahead);
        TestEngine test(
            {.max_batch_rows = 9, .prefill_chunk = 9, .kv_cache_tokens = prompt_length + max_new - 1}, ahead);
        check_reference(generate(*test.engine, requests), requests);
      }
    }
  }
}

TEST_CASE("a long prompt waits for pages while younger samples decode") {
  // Both need their fourth page in the same forward, and one is left; decoding comes first.
  auto requests = std::vector<Request>{request_of(1, 64, 1, 20), request_of(2, 1, 1, 60)};
  for (Request& request : requests) request.sampling.stop_tokens.clear();
  TestEngine test({.max_batch_rows = 8, .prefill_chunk = 1, .kv_cache_tokens = 112});
  check_reference(generate(*test.engine, requests), requests);
  CHECK(test.engine->stats().preemptions == 0);
}

TEST_CASE("requests split over engines, calls and sample ranges give the same samples") {
  const auto requests = mixed_requests();
  TestEngine all({});
  const auto whole = generate(*all.engine, requests);
  TestEngine other({.max_batch_rows = 9, .prefill_chunk = 4, .kv_cache_tokens = 256});
  size_t next = 0;
  for (const Request& request : requests) {
    for (int32_t i = 0; i < request.num_samples; ++i) {
      Request one = request;
      one.num_samples = 1;
      one.first_sample_index = request.first_sample_index + static_cast<uint32_t>(i);
      check_equal(generate(*other.engine, {one}).at(0), whole[next++]);
    }
  }
}

TEST_CASE("one prefill serves all samples of a prompt") {
  TestEngine test({});
  const auto requests = std::vector<Request>{request_of(1, 40, 8, 10), request_of(2, 64, 8, 10)};
  const auto samples = generate(*test.engine, requests);
  const EngineStats& stats = test.engine->stats();
  CHECK(stats.prefill_rows == 104);
  CHECK(stats.shared_rows == 7 * 104);
  uint64_t generated = 0;
  for (const Sample& sample : samples) generated += sample.logprobs.size();
  CHECK(stats.generated_tokens == generated);
  // Logits: one row per prompt, and one per later token.
  CHECK(test.policy->rows_with_logits == 2 + generated - samples.size());
  // Full prompt pages are shared: 2 + 4 of them, and at most two more per sample.
  CHECK(stats.peak_cache_rows <= (6 + 16 * 2) * model::kPageSize);
}

TEST_CASE("samples carry the weight version and cache memory may be overwritten between calls") {
  const auto requests = mixed_requests();
  TestEngine test({});
  test.engine->set_weight_version(3);
  const auto first = generate(*test.engine, requests);
  CHECK(first[0].weight_version == 3);
  for (std::byte& byte : test.engine->cache_memory()) byte = std::byte{0xff};
  test.engine->set_weight_version(4);
  const auto second = generate(*test.engine, requests);
  CHECK(second[0].weight_version == 4);
  check_reference(second, requests);
}

namespace {

void check_callbacks(bool ahead) {
  CAPTURE(ahead);
  auto requests = mixed_requests();
  TestEngine test({.max_batch_rows = 16, .prefill_chunk = 9, .kv_cache_tokens = 160, .record_routing = true},
                  ahead);
  std::map<SampleKey, std::vector<int32_t>> streamed;
  std::map<SampleKey, std::vector<int32_t>> routed;
  std::map<SampleKey, int> finished;
  Callbacks callbacks;
  callbacks.on_token = [&](const SampleKey& key, int32_t token, float) { streamed[key].push_back(token); };
  callbacks.on_sample = [&](const Sample& sample) {
    ++finished[sample.key];
    std::vector<int32_t>& ids = routed[sample.key];
    ids.resize(sample.routing.bytes.size());  // one byte each
    load_expert_ids(sample.routing, 256, 0, ids);
  };
  const auto samples = test.engine->generate(requests, callbacks);
  REQUIRE(samples.ok());
  CHECK(test.engine->stats().preemptions > 0);
  for (const Sample& sample : *samples) {
    CHECK(finished[sample.key] == 1);
    CHECK(sample.routing.empty());  // went to on_sample
    const std::vector<int32_t> response(sample.tokens.begin() + sample.prompt_length, sample.tokens.end());
    CHECK(streamed[sample.key] == response);
    std::vector<uint64_t> states;
    std::vector<int32_t> want;
    for (size_t p = 0; p + 1 < sample.tokens.size(); ++p) {
      uint64_t context = 0;
      for (const uint64_t state : states) context = rollout::testing::mix(context + state);
      states.push_back(FakePolicy::state_of(sample.tokens[p], static_cast<int32_t>(p), context));
      want.push_back(static_cast<int32_t>(states.back() & 0xff));
      want.push_back(static_cast<int32_t>((states.back() >> 8) & 0xff));
    }
    CHECK(routed[sample.key] == want);
  }
}

}  // namespace

TEST_CASE("callbacks see every token in order, each sample once, and the routing of its inputs") {
  check_callbacks(false);
  check_callbacks(true);
}

TEST_CASE("stop strings end a sample at the token that completes them") {
  // Token t reads as one letter; 26 and above read as nothing, as special tokens do.
  const Detokenize letters = [](std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 26) text += static_cast<char>('a' + id);
    }
    return text;
  };
  TestEngine plain({});
  auto requests = std::vector<Request>{request_of(1, 4, 1, 200)};
  requests[0].sampling.stop_tokens.clear();
  const auto free_run = generate(*plain.engine, requests).at(0);
  const std::vector<int32_t> response(free_run.tokens.begin() + free_run.prompt_length,
                                      free_run.tokens.end());
  const std::string text = letters(response);
  const std::string stop = text.substr(20, 5);

  for (const bool ahead : {false, true}) {
    TestEngine test({}, ahead, 1, letters);
    requests[0].sampling.stop_strings = {"never, no letter", stop};
    const auto stopped = generate(*test.engine, requests).at(0);
    CHECK(stopped.finish == FinishReason::kStop);
    const std::string got = letters(std::span(stopped.tokens).subspan(4));
    CHECK(got == text.substr(0, text.find(stop) + stop.size()));
    CHECK(std::equal(stopped.tokens.begin(), stopped.tokens.end(), free_run.tokens.begin()));
  }

  const auto refused = plain.engine->generate(requests);
  REQUIRE(!refused.ok());
  CHECK(mentions(refused.status(), "tokenizer"));
}

TEST_CASE("a stop request ends generation and frees the cache") {
  for (const bool ahead : {false, true}) {
    CAPTURE(ahead);
    TestEngine test({.max_batch_rows = 8, .prefill_chunk = 8, .kv_cache_tokens = 256}, ahead);
    const auto requests = mixed_requests();
    std::stop_source source;
    int tokens = 0;
    Callbacks callbacks;
    callbacks.on_token = [&](const SampleKey&, int32_t, float) {
      if (++tokens == 20) source.request_stop();
    };
    const auto cancelled = test.engine->generate(requests, callbacks, source.get_token());
    CHECK(absl::IsCancelled(cancelled.status()));
    CHECK(tokens < 40);
    check_reference(generate(*test.engine, requests), requests);
  }
}

TEST_CASE("a logit that is not finite names the sample") {
  for (const bool ahead : {false, true}) {
    CAPTURE(ahead);
    TestEngine test({}, ahead);
    test.policy->spoil = std::numeric_limits<float>::quiet_NaN();
    test.engine->set_weight_version(9);
    const auto failed = test.engine->generate(std::vector<Request>{request_of(77, 5, 2, 4)});
    REQUIRE(!failed.ok());
    CHECK(mentions(failed.status(), "step 7, prompt 77, sample 0, position 5, weight version 9"));
    test.policy->spoil = 0.0F;
    const auto requests = mixed_requests();
    check_reference(generate(*test.engine, requests), requests);
  }
}

TEST_CASE("a policy that fails to draw ends the call and frees the cache") {
  for (const bool ahead : {false, true}) {
    CAPTURE(ahead);
    TestEngine test({}, ahead);
    const auto requests = mixed_requests();
    test.policy->draw_status = unavailable_error("the device is gone");
    const auto failed = test.engine->generate(requests);
    REQUIRE(!failed.ok());
    CHECK(mentions(failed.status(), "the device is gone"));
    test.policy->draw_status = absl::OkStatus();
    check_reference(generate(*test.engine, requests), requests);
  }
}

TEST_CASE("bad requests are refused before anything runs") {
  TestEngine test({.max_batch_rows = 8, .prefill_chunk = 8, .kv_cache_tokens = 64});
  const auto refused = [&](const std::function<void(Request&)>& spoil, const std::string& text) {
    std::vector<Request> requests = {request_of(1, 5, 2, 4), request_of(2, 5, 2, 4)};
    spoil(requests[1]);
    const auto result = test.engine->generate(requests);
    REQUIRE(!result.ok());
    CHECK(mentions(result.status(), text));
    CHECK(mentions(result.status(), "prompt 2"));
  };
  refused([](Request& r) { r.prompt.tokens.clear(); }, "empty");
  refused([](Request& r) { r.prompt.tokens[3] = 37; }, "token 37 at position 3");
  refused([](Request& r) { r.prompt.tokens[3] = -1; }, "token -1 at position 3");
  refused([](Request& r) { r.num_samples = 0; }, "num_samples");
  refused([](Request& r) { r.sampling.temperature = -1.0F; }, "temperature");
  refused([](Request& r) { r.sampling.temperature = std::nanf(""); }, "temperature");
  refused([](Request& r) { r.sampling.top_p = 0.0F; }, "top_p");
  refused([](Request& r) { r.sampling.top_k = 0; }, "top_k");
  refused([](Request& r) { r.sampling.max_new_tokens = 0; }, "max_new_tokens");
  refused([](Request& r) { r.sampling.max_new_tokens = 596; }, "600 positions");
  refused([](Request& r) { r.sampling.max_new_tokens = 61; }, "65 rows of the KV cache, which has 64");
  CHECK(test.engine->stats().forwards == 0);
  auto fits = std::vector<Request>{request_of(2, 5, 2, 60)};
  check_reference(generate(*test.engine, fits), fits);
}

TEST_CASE("limits that cannot work are refused") {
  ThreadPool pool(1);
  for (const EngineOptions& options :
       {EngineOptions{.max_batch_rows = 0}, EngineOptions{.prefill_chunk = 0},
        EngineOptions{.kv_cache_tokens = 0}, EngineOptions{.kv_cache_tokens = int64_t{1} << 31}}) {
    CHECK(!Engine::create(std::make_unique<FakePolicy>(pool), options).ok());
  }
}
