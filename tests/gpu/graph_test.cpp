// Captured graphs: the device's own, and those of decode steps, whose samples are what plain launches draw.
#include "device/graph.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/hf_config.hpp"
#include "device_rollout.hpp"
#include "device_runner.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "rollout/engine.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::rollout;
using gpu_test::check_same;
using gpu_test::checkpoint_policy;
using gpu_test::DevicePolicy;
using gpu_test::generate;
using gpu_test::Gpu;
using gpu_test::mixed_requests;
using gpu_test::must;
using gpu_test::random_policy;
using gpu_test::random_tokens;
using gpu_test::Rollout;
using gpu_test::Run;

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4};

void check_equal(const Run& got, const Run& want) {
  check_same(got.samples, want.samples);
  CHECK(got.routing == want.routing);
}

// One engine, whose graphs outlive calls and weights; batches that grow and shrink, with preemptions.
void check_graphs(const Gpu& gpu, DevicePolicy policy, WeightFormat format) {
  const DevicePolicy other = random_policy(gpu, policy.config, format, 77);
  REQUIRE(other.manifest.arena_bytes == policy.manifest.arena_bytes);
  Rollout rollout(gpu, std::move(policy));
  auto requests = mixed_requests(rollout.config().vocab_size);
  for (const EngineOptions& options : {EngineOptions{.record_routing = true},
                                       {.max_batch_rows = 13, .prefill_chunk = 3},
                                       {.max_batch_rows = 64, .prefill_chunk = 50, .kv_cache_tokens = 176}}) {
    CAPTURE(options.max_batch_rows);
    EngineOptions plain = options;
    plain.cuda_graphs = false;
    plain.steps_ahead = false;
    const Run want = rollout.generate(plain, requests);
    CHECK(want.stats.graph_replays == 0);
    CHECK(want.stats.graph_captures == 0);
    const auto engine = rollout.engine(options);
    const Run first = generate(*engine, requests);
    check_equal(first, want);
    CHECK(first.stats.graph_captures > 0);
    CHECK(first.stats.graph_replays > 0);
    if (options.kv_cache_tokens == 176) CHECK(first.stats.preemptions > 0);

    // Other bytes at the same addresses: the same graphs.
    const auto set_weights = [&](const DevicePolicy& from) {
      must(gpu.stream().copy(rollout.policy().arena.data(), from.host->data(),
                             static_cast<size_t>(from.manifest.arena_bytes)));
      must(rollout.model().check_weights());
    };
    set_weights(other);
    const Run other_want = rollout.generate(plain, requests);
    engine->reset_stats();
    const Run second = generate(*engine, requests);
    check_equal(second, other_want);
    CHECK(second.samples[0].logprobs != first.samples[0].logprobs);
    set_weights(rollout.policy());
    engine->reset_stats();
    const Run third = generate(*engine, requests);
    check_equal(third, want);
    CHECK(third.stats.graph_captures == 0);
    CHECK(third.stats.graph_replays > first.stats.graph_replays);
  }
}

DevicePolicy latent_policy(const Gpu& gpu, MlaForm form) {
  ModelConfig config = must(checkpoint::read_hf_config(gpu_test::test_data() + "/hf/deepseek_v3_mla")).model;
  config.mla.form = form;
  return random_policy(gpu, config, WeightFormat::kMXFP8, 31);
}

}  // namespace

TEST_CASE("a graph runs when it is launched on what its memory holds then") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const Memory x = gpu->upload(std::vector<float>{1, 2, 3, 4});
  const Memory y = gpu->upload(std::vector<float>(4, 0.0F));
  const Memory z = gpu->upload(std::vector<float>(4, 0.0F));
  const auto view = [](const Memory& memory) { return MatrixView{memory.data(), Dtype::kF32, 1, 4, 4}; };
  const Graph graph = must(Graph::capture(gpu->stream(), [&] {
    kernels::cuda::add_rows(view(x), view(y), view(y), gpu->handle());
    return gpu->stream().copy(z.data(), y.data(), 4 * sizeof(float));
  }));
  CHECK(gpu->download<float>(y, 4) == std::vector<float>(4, 0.0F));
  must(graph.launch(gpu->stream()));
  must(graph.launch(gpu->stream()));
  CHECK(gpu->download<float>(z, 4) == std::vector<float>{2, 4, 6, 8});
  const std::vector<float> ones(4, 1.0F);
  must(gpu->stream().copy(x.data(), ones.data(), sizeof(float) * 4));
  must(graph.launch(gpu->stream()));
  CHECK(gpu->download<float>(z, 4) == std::vector<float>{3, 5, 7, 9});
}

TEST_CASE("a capture that fails is an error with its cause and leaves the stream usable") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const auto own = Graph::capture(gpu->stream(), [] { return data_error("no such thing"); });
  REQUIRE(!own.ok());
  CHECK(std::string(message_of(own.status())).find("no such thing") != std::string::npos);
  const auto waits = Graph::capture(gpu->stream(), [&] { return gpu->stream().synchronize(); });
  REQUIRE(!waits.ok());
  CHECK(std::string(message_of(waits.status())).find("cudaStreamSynchronize: ") != std::string::npos);
  CHECK(gpu->download<int32_t>(gpu->upload(std::vector<int32_t>{7}), 1) == std::vector<int32_t>{7});
  CHECK(!Graph().launch(gpu->stream()).ok());
}

TEST_CASE("Decode through graphs equals decode without") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const char* name : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"}) {
    for (const WeightFormat format : kFormats) {
      CAPTURE(name);
      CAPTURE(static_cast<int>(format));
      check_graphs(*gpu, checkpoint_policy(*gpu, name, format), format);
    }
  }
}

TEST_CASE("Decode through graphs equals decode without for latent attention") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const MlaForm form : {MlaForm::kPlain, MlaForm::kAbsorbed}) {
    CAPTURE(mla_form_name(form));
    check_graphs(*gpu, latent_policy(*gpu, form), WeightFormat::kMXFP8);
  }
}

TEST_CASE("Graphs are captured again where memory has moved and for longer contexts") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ModelConfig config = must(checkpoint::read_hf_config(gpu_test::test_data() + "/hf/qwen3_moe")).model;
  config.max_position_embeddings = 4096;
  Rollout rollout(*gpu, random_policy(*gpu, config, WeightFormat::kMXFP8, 3));
  // Contexts that cross the borders of attention's splits of 512, beside short ones.
  std::vector<Request> requests;
  const int32_t lengths[] = {505, 3, 1015, 40};
  for (size_t i = 0; i < std::size(lengths); ++i) {
    Request& request = requests.emplace_back();
    request.prompt.id = i;
    request.prompt.tokens = random_tokens(rollout.config().vocab_size, lengths[i], 50 + i);
    request.num_samples = 2;
    request.sampling.max_new_tokens = 20;
  }
  const Run want = rollout.generate({.cuda_graphs = false, .steps_ahead = false}, requests);
  const auto engine = rollout.engine({.max_batch_rows = 16, .prefill_chunk = 16});
  check_same(generate(*engine, requests).samples, want.samples);
  engine->reset_stats();
  const Run again = generate(*engine, requests);
  CHECK(again.stats.graph_captures == 0);
  // A larger engine over the same model takes new memory for both.
  check_same(rollout.generate({.max_batch_rows = 700, .prefill_chunk = 700}, requests).samples, want.samples);
  engine->reset_stats();
  const Run moved = generate(*engine, requests);
  check_same(moved.samples, want.samples);
  CHECK(moved.stats.graph_captures > 0);
  CHECK(moved.stats.graph_replays > 0);
}
