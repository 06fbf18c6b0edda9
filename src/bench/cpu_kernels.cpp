// The CPU's kernels, one thread each, in processor time: what a busy machine takes away does not count.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/philox.hpp"
#include "bench/cpu_ceilings.hpp"
#include "bench/failure.hpp"
#include "bench/kernel_groups.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/linear/linear.hpp"
#include "kernels/logprob/logprob.hpp"
#include "kernels/moe/moe.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/router/router.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "rollout/sampler.hpp"

namespace accord::bench {
namespace {

constexpr int64_t kProduct = 512;
constexpr int64_t kRows = 64;
constexpr int64_t kContext = 256;
constexpr float kEps = 1e-6F;

std::vector<BF16> normal_bf16(int64_t count, uint64_t seed) {
  constexpr double kScale = 0.05;
  PhiloxStream random(seed, 0);
  std::vector<BF16> out(static_cast<size_t>(count));
  for (BF16& x : out) x = to_bf16(static_cast<float>(kScale * random.next_normal()));
  return out;
}

std::vector<float> normal_f32(int64_t count, uint64_t seed) {
  PhiloxStream random(seed, 0);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = static_cast<float>(random.next_normal());
  return out;
}

// A weight in a format, with its bytes.
struct Weight {
  Weight(WeightFormat format, int64_t n, int64_t k)
      : values(normal_bf16(n * k, 1)), codes(values.size()), scales(values.size()) {
    linear = {.format = format, .n = n, .k = k, .data = values.data()};
    if (format == WeightFormat::kBF16) return;
    linear.data = codes.data();
    linear.scales = scales.data();
    const MatrixView x = matrix_view(values.data(), n, k);
    if (format == WeightFormat::kMXFP8) {
      formats::quantize_mxfp8_rows(x, codes.data(), scales.data(), formats::Element::kE4M3);
    } else {
      formats::quantize_nvfp4(x, {}, {codes.data(), scales.data(), &outer});
      linear.outer = &outer;
    }
  }
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  std::vector<BF16> values;
  std::vector<uint8_t> codes, scales;
  float outer = 0.0F;
  kernels::LinearWeight linear;
};

double linear_seconds(const Weight& weight, int64_t m) {
  const kernels::LinearWeight& w = weight.linear;
  kernels::WorkspacePool scratch;
  std::vector<BF16> x = normal_bf16(m * w.k, 2);
  std::vector<BF16> y(static_cast<size_t>(m * w.n));
  return cpu_seconds([&] {
    const kernels::WorkspacePool::Lease lease = scratch.acquire();
    kernels::linear(kernels::make_operand(matrix_view(x.data(), m, w.k), w.activation_format(), *lease), w,
                    matrix_view(y.data(), m, w.n), nullptr, scratch);
  });
}

Ceilings measure() {
  Ceilings c = cpu_bandwidth();
  c.product_size = kProduct;
  c.product = 2.0 * real(kProduct * kProduct * kProduct) /
              linear_seconds(Weight(WeightFormat::kBF16, kProduct, kProduct), kProduct);
  volatile int sink = 0;
  c.launch_seconds = cpu_seconds([&] { sink = sink + 1; });
  return c;
}

class CpuLayer {
 public:
  CpuLayer(const ModelConfig& config, Table& table)
      : config_(config), table_(table), s_(config, {false, kRows, kRows}) {}

  void run() {
    linears();
    rows();
    attention();
    if (s_.moe) experts();
    vocabulary();
  }

 private:
  void report(const std::string& op, const std::string& name, size_t column, const Work& work,
              const std::function<void()>& launch) {
    if (table_.wants(op)) table_.add(column, op, name, work, cpu_seconds(launch));
  }

  void linears() {
    if (!table_.wants("linear")) return;
    for (size_t i = 0; i < kFormats.size(); ++i) {
      for (const auto& [name, n, k] : {std::tuple<const char*, int64_t, int64_t>{"q", s_.q_width, s_.hidden},
                                       {"gate", s_.width, s_.hidden},
                                       {"down", s_.hidden, s_.width}}) {
        const Weight weight(kFormats[i], n, k);
        for (const int64_t m : {int64_t{1}, int64_t{16}, kRows}) {
          const Work work{weight_bytes(kFormats[i], real(n * k)) + 2 * real(m * k), 2 * real(m * n),
                          2 * real(m * n * k)};
          table_.add(i, "linear", fmt::format("{}, {} rows, {} x {}", name, m, n, k), work,
                     linear_seconds(weight, m));
        }
      }
    }
  }

  void rows() {
    std::vector<BF16> x = normal_bf16(kRows * s_.hidden, 1);
    std::vector<BF16> y(x.size());
    const std::vector<BF16> weight = normal_bf16(s_.hidden, 2);
    const MatrixView in = matrix_view(x.data(), kRows, s_.hidden);
    const MatrixView out = matrix_view(y.data(), kRows, s_.hidden);
    const double values = real(kRows * s_.hidden);
    report("rmsnorm", "norm", 0, {2 * values, 2 * values, 0},
           [&] { kernels::rms_norm(in, weight.data(), kEps, out, nullptr); });
    report("embedding", "add", 0, {4 * values, 2 * values, 0}, [&] { kernels::add_rows(in, in, out); });
    std::vector<BF16> gate = normal_bf16(kRows * s_.width, 3);
    std::vector<BF16> act(gate.size());
    const MatrixView wide = matrix_view(gate.data(), kRows, s_.width);
    report("swiglu", "swiglu", 0, {4 * real(kRows * s_.width), 2 * real(kRows * s_.width), 0},
           [&] { kernels::swiglu(wide, wide, matrix_view(act.data(), kRows, s_.width)); });
    kernels::RopeTable table(config_.head_dim, config_.rope_theta, config_.rope_scaling);
    table.ensure(kRows);
    std::vector<int32_t> positions(kRows);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<BF16> q = normal_bf16(kRows * s_.q_width, 4);
    std::vector<BF16> turned(q.size());
    report("rope", "rotary q", 0, {2 * real(kRows * s_.q_width), 2 * real(kRows * s_.q_width), 0}, [&] {
      kernels::apply_rope(matrix_view(q.data(), kRows, s_.q_width), positions.data(), table,
                          matrix_view(turned.data(), kRows, s_.q_width), nullptr);
    });
  }

  void attention() {
    std::vector<BF16> k = normal_bf16(kContext * s_.kv_width, 1);
    std::vector<BF16> v = normal_bf16(kContext * s_.kv_width, 2);
    std::vector<int32_t> pages;
    for (int64_t p = 0; p < kContext; p += kernels::kPageSize) pages.push_back(static_cast<int32_t>(p));
    const kernels::KvLayer kv{matrix_view(k.data(), kContext, s_.kv_width),
                              matrix_view(v.data(), kContext, s_.kv_width)};
    for (const int64_t rows : {int64_t{1}, kContext}) {
      std::vector<BF16> q = normal_bf16(rows * s_.q_width, 3);
      std::vector<BF16> out(q.size());
      std::vector<float> lse(static_cast<size_t>(rows * s_.heads));
      const kernels::Segment segment{0, static_cast<int32_t>(rows), static_cast<int32_t>(kContext - rows),
                                     pages.data()};
      const double pairs = real(rows * (kContext - rows) + rows * (rows + 1) / 2);
      const double moved = 2 * real(rows * s_.q_width);
      kernels::Workspace scratch;
      report("attention", fmt::format("attention, {} rows at context {}", rows, kContext), 0,
             {4 * real(kContext * s_.kv_width) + moved, moved, 4 * pairs * real(s_.q_width)}, [&] {
               for (int64_t h = 0; h < s_.kv_heads; ++h) {
                 kernels::attention(matrix_view(q.data(), rows, s_.q_width), kv, segment, 0, rows, h,
                                    {s_.heads, s_.kv_heads, s_.head_dim},
                                    matrix_view(out.data(), rows, s_.q_width), lse.data(), scratch);
               }
             });
    }
  }

  void experts() {
    const std::vector<float> logits = normal_f32(kRows * s_.experts, 1);
    const kernels::RouterRule rule = kernels::router_rule(config_);
    std::vector<float> scores(logits.size());
    std::vector<float> scratch(static_cast<size_t>(2 * s_.experts));
    std::vector<float> weights(static_cast<size_t>(s_.sorted));
    std::vector<int32_t> ids(static_cast<size_t>(s_.sorted));
    const auto route = [&] {
      for (int64_t t = 0; t < kRows; ++t) {
        float* const row = scores.data() + t * s_.experts;
        kernels::router_scores(rule, logits.data() + t * s_.experts, row);
        kernels::router_choose(rule, row, nullptr, ids.data() + t * s_.slots, scratch.data());
        kernels::router_weights(rule, row, ids.data() + t * s_.slots, weights.data() + t * s_.slots);
      }
    };
    route();  // the next ones need ids
    const double read = 4 * real(kRows * s_.experts);
    report("router", "route", 0, {read, read + 8 * real(s_.sorted), 0}, route);
    std::vector<int32_t> offsets(static_cast<size_t>(s_.experts) + 1);
    std::vector<int32_t> tokens(ids.size()), slots(ids.size()), slot_rows(ids.size());
    const kernels::ExpertOrder order{offsets.data(), tokens.data(), slots.data(), slot_rows.data()};
    const auto sort = [&] { kernels::sort_by_expert(ids, s_.experts, s_.slots, order); };
    sort();
    report("moe", "sort by expert", 0, {4 * real(s_.sorted), 12 * real(s_.sorted), 0}, sort);
    std::vector<BF16> x = normal_bf16(kRows * s_.hidden, 2);
    std::vector<BF16> down = normal_bf16(s_.sorted * s_.hidden, 3);
    std::vector<BF16> y(x.size());
    report(
        "moe", "combine", 0,
        {2 * real(kRows * s_.hidden) + 2 * real(s_.sorted * s_.hidden), 2 * real(kRows * s_.hidden), 0}, [&] {
          kernels::combine_experts(
              matrix_view(x.data(), kRows, s_.hidden), matrix_view(down.data(), s_.sorted, s_.hidden),
              weights.data(), slot_rows.data(), s_.slots, 0, kRows, matrix_view(y.data(), kRows, s_.hidden));
        });
  }

  void vocabulary() {
    const std::vector<float> logits = normal_f32(s_.vocab, 1);
    volatile float sink = 0.0F;
    report("logprob", "log-probability of one row", 0, {4 * real(s_.vocab), 0, 0},
           [&] { sink = kernels::token_logprob(logits.data(), s_.vocab, 1, 1.0F); });
    rollout::SamplerScratch scratch;
    for (const auto& [name, top_p, top_k] :
         {std::tuple<const char*, float, int32_t>{"draw from one row", 1.0F, -1},
          {"draw with top-p and top-k", 0.9F, 50}}) {
      SamplingParams params;
      params.top_p = top_p;
      params.top_k = top_k;
      report("sampler", name, 0, {4 * real(s_.vocab), 0, 0},
             [&] { sink = must(rollout::draw_token(logits, params, uint64_t{1} << 63, scratch)).logprob; });
    }
  }

  const ModelConfig& config_;
  Table& table_;
  const Sizes s_;
};

void format_table(const KernelRun& run, const Ceilings& ceilings) {
  constexpr int64_t kFormatRows = 512;
  constexpr int64_t kCols = 2048;
  Table table(ceilings, fmt::format("quantizers, {} x {}", kFormatRows, kCols), {"bf16", "fp32"},
              run.options.op);
  if (!table.wants("formats")) return;
  std::vector<BF16> narrow = normal_bf16(kFormatRows * kCols, 1);
  std::vector<float> wide(narrow.size());
  std::transform(narrow.begin(), narrow.end(), wide.begin(), [](BF16 x) { return to_float(x); });
  std::vector<uint8_t> q(narrow.size()), scales(narrow.size());
  std::vector<float> outer(kFormatRows);
  const std::array<MatrixView, 2> inputs{matrix_view(narrow.data(), kFormatRows, kCols),
                                         matrix_view(wide.data(), kFormatRows, kCols)};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const MatrixView x = inputs[i];
    const double bytes = real(size_of(x.dtype)) * real(kFormatRows * kCols);
    const auto report = [&](const std::string& name, WeightFormat format, const std::function<void()>& work) {
      table.add(i, "formats", name, {bytes, weight_bytes(format, real(kFormatRows * kCols)), 0},
                cpu_seconds(work));
    };
    report("MXFP8, rows", WeightFormat::kMXFP8,
           [&] { formats::quantize_mxfp8_rows(x, q.data(), scales.data(), formats::Element::kE4M3); });
    report("MXFP8, columns", WeightFormat::kMXFP8,
           [&] { formats::quantize_mxfp8_cols(x, q.data(), scales.data(), formats::Element::kE4M3); });
    const auto nvfp4 = [&](const std::string& name, const formats::Nvfp4Options& options) {
      report("NVFP4, " + name, WeightFormat::kNVFP4, [&] {
        formats::quantize_nvfp4(x, options, {q.data(), scales.data(), outer.data()});
      });
    };
    formats::Nvfp4Options token;
    token.scope = formats::Nvfp4Scope::kToken;
    formats::Nvfp4Options square;
    square.layout = formats::Nvfp4Layout::k16x16;
    nvfp4("per tensor", {});
    nvfp4("per token", token);
    nvfp4("16x16", square);
    token.four_over_six = FourOverSix::kMse;
    nvfp4("per token, four over six", token);
  }
  run.finish(std::move(table));
}

}  // namespace

void run_cpu_kernels(const KernelRun& run) {
  run.report.ceilings = measure();
  run.report.note =
      "one thread, processor time; timings of a CPU are noisy: compare figures of one idle machine only";
  run.print(fmt::format("{}: {}\n{}\n", run.report.device, to_text(run.report.ceilings), run.report.note));
  for (const Shape& shape : run.shapes) {
    Table table(run.report.ceilings, fmt::format("{}, {} rows", shape.name, kRows), format_columns(),
                run.options.op);
    CpuLayer(shape.config, table).run();
    run.finish(std::move(table));
  }
  format_table(run, run.report.ceilings);
}

}  // namespace accord::bench
