// The forward's kernels and a whole forward on the CPU: each line a figure and its share of the fused
// multiply-add peak of one core, measured in the same run. One-thread figures are processor time, the others
// wall time (meaningful on an idle machine only).
//
//   bench_model             everything
//   bench_model linear|attention|forward
//
// Speed is only worth something after test_kernels and test_model passed.
#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/philox.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/linear/linear.hpp"
#include "model/forward.hpp"

namespace {

using namespace accord;

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Time of this thread alone: what a busy machine takes away does not count.
double thread_clock() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Shortest of several timings, in seconds per call.
double seconds(const std::function<void()>& work, double (*clock)() = thread_clock) {
  work();
  double best = 1e30;
  for (int repeat = 0; repeat < 15; ++repeat) {
    int calls = 0;
    const double start = clock();
    double elapsed = 0.0;
    do {
      work();
      ++calls;
      elapsed = clock() - start;
    } while (elapsed < 0.005);
    best = std::min(best, elapsed / calls);
  }
  return best;
}

// Twelve independent chains keep both multiply-add units busy; the empty asm keeps the compiler from
// computing equal chains once.
double peak_flops() {
  constexpr int64_t kSteps = 100000;
  constexpr double kFlops = 12.0 * 8 * 2 * kSteps;
  const double t = seconds([] {
    const __m256 x = _mm256_set1_ps(0.5F);
    const __m256 y = _mm256_set1_ps(0.25F);
    __m256 a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x, a10 = x, a11 = x;
    for (int64_t i = 0; i < kSteps; ++i) {
      asm volatile(""
                   : "+x"(a0), "+x"(a1), "+x"(a2), "+x"(a3), "+x"(a4), "+x"(a5), "+x"(a6), "+x"(a7), "+x"(a8),
                     "+x"(a9), "+x"(a10), "+x"(a11));
      a0 = _mm256_fmadd_ps(a0, x, y);
      a1 = _mm256_fmadd_ps(a1, x, y);
      a2 = _mm256_fmadd_ps(a2, x, y);
      a3 = _mm256_fmadd_ps(a3, x, y);
      a4 = _mm256_fmadd_ps(a4, x, y);
      a5 = _mm256_fmadd_ps(a5, x, y);
      a6 = _mm256_fmadd_ps(a6, x, y);
      a7 = _mm256_fmadd_ps(a7, x, y);
      a8 = _mm256_fmadd_ps(a8, x, y);
      a9 = _mm256_fmadd_ps(a9, x, y);
      a10 = _mm256_fmadd_ps(a10, x, y);
      a11 = _mm256_fmadd_ps(a11, x, y);
    }
  });
  return kFlops / t;
}

std::vector<BF16> normal_bf16(int64_t count, uint64_t seed) {
  PhiloxStream random(seed, 0);
  std::vector<BF16> out(static_cast<size_t>(count));
  for (BF16& x : out) x = to_bf16(static_cast<float>(0.05 * random.next_normal()));
  return out;
}

void report(const std::string& what, double flops, double peak) {
  fmt::print("{:<52} {:8.1f} GFLOP/s {:5.1f} % of one core's peak\n", what, flops * 1e-9,
             100.0 * flops / peak);
}

void bench_linear(double peak) {
  kernels::WorkspacePool scratch;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {128, 128}, {512, 512}, {2048, 2048}}) {
    std::vector<BF16> w = normal_bf16(n * k, 1);
    std::vector<uint8_t> q(w.size());
    std::vector<uint8_t> s(w.size() / 32);
    formats::quantize_mxfp8_rows(matrix_view(w.data(), n, k), q.data(), s.data(), formats::Element::kE4M3);
    for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kMXFP8}) {
      const kernels::LinearWeight weight{
          format,   n,      k, format == WeightFormat::kBF16 ? static_cast<const void*>(w.data()) : q.data(),
          s.data(), nullptr};
      for (const int64_t m : {1, 4, 16, 64, 256}) {
        std::vector<BF16> x = normal_bf16(m * k, 2);
        std::vector<BF16> y(static_cast<size_t>(m * n));
        const double t = seconds([&] {
          const kernels::WorkspacePool::Lease lease = scratch.acquire();
          kernels::linear(
              kernels::make_operand(matrix_view(x.data(), m, k), weight.activation_format(), *lease), weight,
              matrix_view(y.data(), m, n), nullptr, scratch);
        });
        report(fmt::format("linear {} M={} N={} K={} ({:.2f} us)",
                           format == WeightFormat::kBF16 ? "bf16 " : "mxfp8", m, n, k, t * 1e6),
               2.0 * static_cast<double>(m * n * k) / t, peak);
      }
    }
  }
}

void bench_attention(double peak) {
  constexpr int64_t kHeads = 8;
  constexpr int64_t kKvHeads = 2;
  for (const int64_t d : {32, 128}) {
    for (const auto& [rows, context] : {std::pair<int64_t, int64_t>{512, 512}, {1, 1024}}) {
      std::vector<BF16> k = normal_bf16(context * kKvHeads * d, 1);
      std::vector<BF16> v = normal_bf16(context * kKvHeads * d, 2);
      std::vector<BF16> q = normal_bf16(rows * kHeads * d, 3);
      std::vector<BF16> out(q.size());
      std::vector<float> lse(static_cast<size_t>(rows * kHeads));
      std::vector<int32_t> pages;
      for (int64_t p = 0; p < context; p += kernels::kPageSize) pages.push_back(static_cast<int32_t>(p));
      const kernels::Segment segment{0, static_cast<int32_t>(rows), static_cast<int32_t>(context - rows),
                                     pages.data()};
      kernels::Workspace scratch;
      const kernels::KvLayer kv{matrix_view(k.data(), context, kKvHeads * d),
                                matrix_view(v.data(), context, kKvHeads * d)};
      const double t = seconds([&] {
        for (int64_t h = 0; h < kKvHeads; ++h) {
          kernels::attention(matrix_view(q.data(), rows, kHeads * d), kv, segment, 0, rows, h,
                             {kHeads, kKvHeads, d}, matrix_view(out.data(), rows, kHeads * d), lse.data(),
                             scratch);
        }
      });
      const double pairs = static_cast<double>(rows * (context - rows) + rows * (rows + 1) / 2);
      report(fmt::format("attention rows={} context={} d={} heads={}/{}", rows, context, d, kHeads, kKvHeads),
             4.0 * pairs * static_cast<double>(kHeads * d) / t, peak);
    }
  }
}

ModelConfig moe_config(int64_t hidden) {
  ModelConfig c;
  c.vocab_size = 512;
  c.hidden_size = hidden;
  c.num_layers = 4;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 32;
  c.num_experts = 8;
  c.num_experts_per_token = 2;
  c.moe_intermediate_size = hidden;
  c.layer_is_moe.assign(4, true);
  c.qk_norm = true;
  c.tie_word_embeddings = true;
  c.max_position_embeddings = 4096;
  return c;
}

struct Policy {
  WeightManifest manifest;
  Buffer arena;
};

Policy random_policy(const ModelConfig& config, WeightFormat format) {
  Policy policy;
  int64_t offset = 0;
  const auto place = [&](int64_t bytes) {
    const int64_t at = offset;
    offset += (bytes + 255) / 256 * 256;
    return at;
  };
  for (const ParamSpec& spec : parameter_specs(config)) {
    WeightEntry e;
    e.name = spec.name;
    e.shape = spec.shape;
    const bool projection = spec.role >= ParamRole::kQ;
    e.format = projection ? format : WeightFormat::kBF16;
    e.data_bytes = spec.numel() * (e.format == WeightFormat::kBF16 ? 2 : 1);
    e.data_offset = place(e.data_bytes);
    if (e.format == WeightFormat::kMXFP8) {
      e.scale_bytes = spec.numel() / 32;
      e.scale_offset = place(e.scale_bytes);
    }
    policy.manifest.entries.push_back(e);
  }
  policy.manifest.arena_bytes = offset;
  policy.arena.ensure(static_cast<size_t>(offset));
  for (const WeightEntry& e : policy.manifest.entries) {
    auto* data = policy.arena.as<uint8_t>() + e.data_offset;
    int64_t count = 1;
    for (const int64_t d : e.shape) count *= d;
    std::vector<BF16> values = normal_bf16(count, static_cast<uint64_t>(e.data_offset) + 1);
    if (e.format == WeightFormat::kBF16) {
      std::memcpy(data, values.data(), values.size() * sizeof(BF16));
    } else {
      formats::quantize_mxfp8_rows(matrix_view(values.data(), e.shape[0], e.shape[1]), data,
                                   policy.arena.as<uint8_t>() + e.scale_offset, formats::Element::kE4M3);
    }
  }
  return policy;
}

// `sequences` sequences of `rows` new positions each, ending at `context`.
void bench_forward(const ModelConfig& c, WeightFormat format, int threads, int64_t sequences, int64_t rows,
                   int64_t context, double peak) {
  const Policy policy = random_policy(c, format);
  ThreadPool pool(threads);
  auto weights = model::bind_weights(c, policy.manifest, policy.arena.data());
  if (!weights.ok()) {
    fmt::print(stderr, "{}\n", message_of(weights.status()));
    std::exit(1);
  }
  auto created = model::Model::create(c, *weights, Dtype::kBF16, pool);
  model::Model& model = **created;
  const int64_t pages_each = (context + model::kPageSize - 1) / model::kPageSize;
  std::vector<std::vector<int32_t>> pages;
  std::vector<model::Segment> segments;
  std::vector<int32_t> tokens, positions, kv_rows, all;
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<int32_t> own;
    for (int64_t i = 0; i < pages_each; ++i) {
      own.push_back(static_cast<int32_t>((s * pages_each + i) * model::kPageSize));
    }
    pages.push_back(own);
    for (int64_t p = context - rows; p < context; ++p) {
      all.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(static_cast<int32_t>((s * 31 + p * 7) % c.vocab_size));
      positions.push_back(static_cast<int32_t>(p));
      kv_rows.push_back(own[static_cast<size_t>(p / model::kPageSize)] +
                        static_cast<int32_t>(p % model::kPageSize));
    }
  }
  for (int64_t s = 0; s < sequences; ++s) {
    segments.push_back({static_cast<int32_t>(s * rows), static_cast<int32_t>(rows),
                        static_cast<int32_t>(context - rows), pages[static_cast<size_t>(s)].data()});
  }
  const model::Batch batch{tokens, positions, kv_rows, segments};
  const int64_t n = batch.num_rows();
  const int64_t cache_rows = sequences * pages_each * model::kPageSize;
  const int64_t width = c.num_kv_heads * c.head_dim;
  std::vector<Buffer> caches(static_cast<size_t>(2 * c.num_layers));
  std::vector<model::KvLayer> kv;
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const auto at = static_cast<size_t>(2 * l);
    kv.push_back({caches[at].matrix(Dtype::kBF16, cache_rows, width),
                  caches[at + 1].matrix(Dtype::kBF16, cache_rows, width)});
    for (const size_t i : {at, at + 1}) {
      std::memset(caches[i].data(), 0, static_cast<size_t>(cache_rows * width * 2));
    }
  }
  Buffer x_buffer;
  Buffer logits_buffer;
  const MatrixView x = x_buffer.matrix(Dtype::kBF16, n, c.hidden_size);
  const MatrixView logits = logits_buffer.matrix(Dtype::kF32, n, c.vocab_size);
  const double t = seconds(
      [&] {
        model.embed(batch, x);
        for (int64_t l = 0; l < c.num_layers; ++l) {
          const Status status = model.layer_forward(l, batch, kv[static_cast<size_t>(l)], x, {}, nullptr);
          if (!status.ok()) std::abort();
        }
        model.logits(x, all, logits);
      },
      threads == 1 ? thread_clock : wall_clock);
  const int64_t heads = c.num_heads * c.head_dim;
  const int64_t per_token =
      c.num_layers * (c.hidden_size * (2 * heads + 2 * width) + c.hidden_size * c.num_experts +
                      3 * c.num_experts_per_token * c.hidden_size * c.moe_intermediate_size +
                      heads * (2 * context - rows + 1)) +
      c.hidden_size * c.vocab_size;
  report(fmt::format("forward H={} {} x{} {} seq x {} rows: {:.0f} tokens/s", c.hidden_size,
                     format == WeightFormat::kBF16 ? "bf16" : "mxfp8", threads, sequences, rows,
                     static_cast<double>(n) / t),
         2.0 * static_cast<double>(per_token * n) / t, peak);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const double peak = peak_flops();
  fmt::print("fused multiply-add peak of one core (AVX2)             {:8.1f} GFLOP/s\n", peak * 1e-9);
  if (only.empty() || only == "linear") bench_linear(peak);
  if (only.empty() || only == "attention") bench_attention(peak);
  if (only.empty() || only == "forward") {
    for (const int64_t hidden : {64, 128}) {
      for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kMXFP8}) {
        for (const int threads : {1, 2}) {
          for (const auto& [sequences, rows] :
               {std::pair<int64_t, int64_t>{1, 1}, {16, 1}, {64, 1}, {256, 1}, {32, 64}}) {
            bench_forward(moe_config(hidden), format, threads, sequences, rows, 64, peak);
          }
        }
      }
    }
  }
  return 0;
}
