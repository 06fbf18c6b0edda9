#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "bench/operations.hpp"
#include "bench/random_policy.hpp"
#include "device/graph.hpp"
#include "kernels/sampler/sampler_cuda.hpp"
#include "model/cuda_model.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

constexpr int kSteps = 20;

}  // namespace

struct WholeModel::Impl {
  explicit Impl(const Run& r)
      : bench(r.bench),
        config(r.config),
        phase(r.phase),
        host(r.config, r.phase),
        device(r.bench.gpu(), config, phase) {
    const Device& gpu = bench.gpu().device();
    const RandomPolicy policy = must(uniform_policy(config, kFormats[r.format]));
    arena = must(Memory::allocate(gpu, static_cast<size_t>(policy.manifest.arena_bytes)));
    fill_arena(policy, arena.as<std::byte>(), bench.gpu());
    model = must(model::CudaModel::create(
        config, must(model::bind_weights(config, policy.manifest, arena.data())), gpu, bench.gpu().stream()));
    if (phase.decode) must(model->keep_expert_fragments());
    must(model->check_weights());
    const KvWidths widths = kv_widths(config);
    const int64_t cache_rows = phase.cache_rows();
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      BF16* const k = bench.bf16(cache_rows * widths.k);
      caches.push_back(
          model::kv_layer(config, Dtype::kBF16, cache_rows, k, bench.bf16(cache_rows * widths.v)));
    }
    for (int32_t s = 0; s < static_cast<int32_t>(phase.sequences()); ++s) {
      const auto length = static_cast<int32_t>(phase.length);
      const int32_t* pages = host.pages.data() + s * host.pages_each;
      segments.push_back(phase.decode ? model::Segment{s, 1, length - 1, pages}
                                      : model::Segment{s * length, length, 0, pages});
    }
    must(model->check(batch(), cache_rows));
    must(model->set_batch(batch()));
    if (!phase.decode) must(tape.reserve(gpu, config, 0, phase.rows));
    x_memory =
        must(Memory::allocate(gpu, static_cast<size_t>(phase.rows * config.hidden_size) * sizeof(BF16)));
    x = matrix_view(x_memory.as<BF16>(), phase.rows, config.hidden_size);
    if (!phase.decode) return;
    logits = must(Memory::allocate(gpu, static_cast<size_t>(phase.rows * config.vocab_size) * sizeof(float)));
    requests = bench.gpu().upload(
        std::vector<cuda::DrawRequest>(static_cast<size_t>(phase.rows), cuda::DrawRequest{}));
    const size_t bytes = static_cast<size_t>(phase.rows) * sizeof(cuda::DrawResult);
    results = must(Memory::allocate(gpu, bytes));
    results_host = must(Memory::allocate(gpu, bytes, MemoryKind::kPinned));
  }

  model::Batch batch() const { return {host.tokens, host.positions, host.rows, segments}; }

  void run_layers() {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      model->layer_forward(layer, caches[static_cast<size_t>(layer)], x, {}, phase.decode ? nullptr : &tape,
                           phase.decode && layer + 1 < config.num_layers);
    }
  }

  Graph capture(const std::function<void()>& launches) const {
    launches();  // kernels must have run before
    return must(Graph::capture(bench.gpu().stream(), [&] {
      launches();
      return absl::OkStatus();
    }));
  }

  // Median, many back to back.
  double seconds(Submission how, const std::function<void()>& launches) const {
    if (how == Submission::kLaunches) return bench.seconds(launches);
    const Graph graph = capture(launches);
    return bench.seconds([&] { must(graph.launch(bench.gpu().stream())); });
  }

  void step() {
    model->embed(x);
    run_layers();
    const MatrixView out = matrix_view(logits.as<float>(), phase.rows, config.vocab_size);
    must(model->logits(x, device.row_ids.as<int32_t>(), phase.rows, out));
    cuda::draw_tokens(out, requests.as<cuda::DrawRequest>(), results.as<cuda::DrawResult>(), bench.stream());
  }

  // Every draw must have found finite logits.
  void check_results() const {
    const auto drawn = bench.gpu().download<cuda::DrawResult>(results, static_cast<size_t>(phase.rows));
    for (const cuda::DrawResult& r : drawn) {
      if (r.token < 0)
        must(internal_error("a decode step drew no token: logit {} is not finite", r.bad_token));
    }
  }

  DeviceBench& bench;
  const ModelConfig config;
  const Phase phase;
  const HostBatch host;
  const DeviceBatch device;
  Memory arena, x_memory, logits, requests, results, results_host;
  MatrixView x;
  std::unique_ptr<model::CudaModel> model;
  std::vector<model::KvLayer> caches;
  std::vector<model::Segment> segments;
  model::CudaLayerTape tape;
};

WholeModel::WholeModel(const Run& run) : impl_(std::make_unique<Impl>(run)) {}
WholeModel::~WholeModel() = default;

double WholeModel::layer_seconds(Submission how) {
  Impl& m = *impl_;
  m.model->embed(m.x);
  const double all = m.seconds(how, [&m] { m.run_layers(); });
  return all / static_cast<double>(m.config.num_layers);
}

double WholeModel::step_seconds(Submission how) {
  Impl& m = *impl_;
  const double seconds = m.seconds(how, [&m] { m.step(); });
  m.check_results();
  return seconds;
}

double WholeModel::waiting_step_seconds(Submission how) {
  Impl& m = *impl_;
  const Graph graph = how == Submission::kGraph ? m.capture([&m] { m.step(); }) : Graph();
  std::vector<double> times;
  for (int i = 0; i < kSteps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    must(m.model->set_batch(m.batch()));
    if (how == Submission::kGraph) {
      must(graph.launch(m.bench.gpu().stream()));
    } else {
      m.step();
    }
    must(m.bench.gpu().stream().copy(m.results_host.data(), m.results.data(), m.results.bytes()));
    m.bench.gpu().synchronize();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[kSteps / 2];
}

WholeModel::Capture WholeModel::step_capture() {
  Impl& m = *impl_;
  const Device& device = m.bench.gpu().device();
  const Graph first = m.capture([&m] { m.step(); });  // what CUDA sets up once
  must(first.launch(m.bench.gpu().stream()));
  m.bench.gpu().synchronize();
  const int64_t free = must(device.free_bytes());
  const auto begin = std::chrono::steady_clock::now();
  const Graph graph = must(Graph::capture(m.bench.gpu().stream(), [&m] {
    m.step();
    return absl::OkStatus();
  }));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  must(graph.launch(m.bench.gpu().stream()));
  m.bench.gpu().synchronize();
  return {seconds.count(), free - must(device.free_bytes())};
}

}  // namespace accord::bench
