// Products at decode sizes and large ones, and attention at other batches than the layers' tables have.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/operations.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/copy/read_cuda.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

double d(int64_t x) { return static_cast<double>(x); }

class Products {
 public:
  Products(DeviceBench& bench, const ModelConfig& config, Table& table)
      : bench_(bench),
        config_(config),
        table_(table),
        rotated_bytes_(kCaches * d(must(bench.gpu().device().info()).l2_bytes)) {}

  void plain(const std::string& what, int64_t m, int64_t n, int64_t k) {
    if (!table_.wants("gemm")) return;
    for (size_t i = 0; i < kFormats.size(); ++i) {
      cuda::GemmForward g = product(kFormats[i], m, n, k);
      const Work work{weight_bytes(kFormats[i], d(n * k)) + 2 * d(m * k), 2 * d(m * n), 2 * d(m) * d(n * k)};
      table_.add(i, "gemm", fmt::format("{}, {} rows, {} x {}", what, m, n, k), work, bench_.seconds([&] {
        g.a = bench_.bf16(m * k);
        g.a_outer = bench_.f32(m);
        g.b = bench_.weight(kFormats[i], n, k);
        g.c.data = bench_.out<BF16>(m * n);
        cuda::gemm_forward(g, bench_.stream());
      }));
    }
  }

  // The products of `tokens` tokens' experts, whose weights rotate over more memory than the cache holds.
  void experts(int64_t tokens) {
    if (!table_.wants("gemm")) return;
    const Phase phase{true, tokens, 16};
    const Sizes s(config_, phase);
    const Routed routed(bench_, config_, s);
    grouped(fmt::format("gate of {} tokens' experts", tokens), s, routed, s.width, s.hidden, true);
    grouped(fmt::format("down of {} tokens' experts", tokens), s, routed, s.hidden, s.width, false);
  }

  void decode_attention(int64_t batch, int64_t context) {
    if (!table_.wants("attention")) return;
    const Phase phase{true, batch, context};
    const Sizes s(config_, phase);
    const DeviceBatch rows(bench_.gpu(), config_, phase);
    cuda::AttentionForward a;
    a.dims = attention_dims(config_);
    a.q_stride = a.out_stride = s.q_width;
    a.k_stride = a.v_stride = s.kv_width;
    a.pages = rows.pages.as<int32_t>();
    a.tiles = rows.tiles.as<cuda::AttentionTile>();
    a.num_tiles = rows.num_tiles;
    a.num_rows = batch;
    a.few_rows = true;
    a.max_splits = rows.max_splits;
    a.positions = rows.positions.as<int32_t>();
    const Memory partials = bench_.gpu().allocate(
        static_cast<size_t>(cuda::attention_partials_bytes(a.dims, batch, a.max_splits)) + 1);
    a.partials = partials.data();
    const int64_t cache = phase.cache_rows() * s.kv_width;
    const double moved = 2 * d(batch * s.q_width);
    const Work work{4 * d(cache) + moved, moved, 4 * d(batch * context) * d(s.q_width)};
    table_.add(0, "attention", fmt::format("attention, batch {} at context {}", batch, context), work,
               bench_.seconds([&] {
                 a.q = bench_.bf16(batch * s.q_width);
                 a.k = bench_.bf16(cache);
                 a.v = bench_.bf16(cache);
                 a.out = bench_.out<BF16>(batch * s.q_width);
                 a.lse = bench_.out<float>(batch * s.heads);
                 cuda::attention_forward(a, bench_.stream());
               }));
  }

 private:
  // Of the weights of the experts that have rows, `values` each.
  double plain_read(const std::vector<cuda::GemmWeight>& entries, const Sizes& s, const Routed& routed,
                    WeightFormat format, int64_t values) {
    std::vector<cuda::GemmWeight> used;
    const auto per_layer = static_cast<size_t>(s.experts);
    for (size_t e = 0; e < entries.size(); ++e) {
      if (routed.begins[e % per_layer + 1] > routed.begins[e % per_layer]) used.push_back(entries[e]);
    }
    const Memory table = bench_.gpu().upload(used);
    const Memory sink = bench_.gpu().allocate(sizeof(uint32_t));
    const auto all = static_cast<int64_t>(weight_bytes(format, d(values)));
    const int64_t data = format == WeightFormat::kBF16    ? 2 * values
                         : format == WeightFormat::kMXFP8 ? values
                                                          : values / 2;
    const auto layers = static_cast<int64_t>(entries.size() / per_layer);
    int64_t turn = 0;
    return bench_.seconds([&] {
      cuda::plain_read(table.as<cuda::GemmWeight>() + turn++ % layers * routed.used_experts,
                       static_cast<int32_t>(routed.used_experts), data, all - data, sink.as<uint32_t>(),
                       bench_.stream());
    });
  }

  static cuda::GemmForward product(WeightFormat format, int64_t m, int64_t n, int64_t k) {
    cuda::GemmForward g;
    g.format = format;
    g.m = m;
    g.n = n;
    g.k = k;
    g.lda = k;
    g.c = {nullptr, n, /*bf16=*/true, false};
    return g;
  }

  void grouped(const std::string& name, const Sizes& s, const Routed& routed, int64_t n, int64_t k,
               bool gather) {
    const int64_t inputs = gather ? s.rows : s.sorted;
    for (size_t i = 0; i < kFormats.size(); ++i) {
      // Layers in turn, so that more than the cache holds passes before a weight is read again.
      const double used_bytes = weight_bytes(kFormats[i], d(routed.used_experts * n * k));
      const auto num_tables = static_cast<int64_t>(rotated_bytes_ / used_bytes) + 1;
      std::vector<cuda::GemmWeight> entries;
      for (int64_t e = 0; e < num_tables * s.experts; ++e)
        entries.push_back(bench_.weight(kFormats[i], n, k));
      const Memory tables = bench_.gpu().upload(entries);
      cuda::GemmGroups groups = routed.groups;
      groups.gather = gather ? routed.tokens.as<int32_t>() : nullptr;
      cuda::GemmForward g = product(kFormats[i], s.sorted, n, k);
      g.groups = &groups;
      const Work work{weight_bytes(kFormats[i], d(routed.used_experts * n * k)) + 2 * d(inputs * k),
                      2 * d(s.sorted * n), 2 * d(s.sorted) * d(n * k)};
      int64_t turn = 0;
      const double read_seconds = plain_read(entries, s, routed, kFormats[i], n * k);
      const double seconds = bench_.seconds([&] {
        groups.experts = tables.as<cuda::GemmWeight>() + turn++ % num_tables * s.experts;
        g.a = bench_.bf16(inputs * k);
        g.a_outer = bench_.f32(inputs);
        g.c.data = bench_.out<BF16>(s.sorted * n);
        cuda::gemm_forward(g, bench_.stream());
      });
      table_.add_beside_read(i, "gemm", fmt::format("{} ({} used), {} x {}", name, routed.used_experts, n, k),
                             work, seconds, read_seconds);
    }
  }

  static constexpr double kCaches = 5.0;  // more than four times the L2

  DeviceBench& bench_;
  const ModelConfig& config_;
  Table& table_;
  const double rotated_bytes_;
};

}  // namespace

void product_tables(const KernelRun& run, DeviceBench& bench, const Shape& shape, int64_t context,
                    bool tiny) {
  std::vector<std::string> columns;
  for (const WeightFormat format : kFormats) columns.emplace_back(format_name(format));
  Table table(bench.ceilings(), shape.name + ", products and attention by the number of rows", columns,
              run.options.op);
  const ModelConfig& c = shape.config;
  const int64_t q_width = c.num_heads * c.head_dim;
  const int64_t kv_width = c.num_kv_heads * c.head_dim;
  Products products(bench, c, table);
  for (const int64_t rows : tiny ? std::vector<int64_t>{1, 8} : std::vector<int64_t>{1, 8, 16, 64, 256}) {
    products.plain("q, k and v in one", rows, q_width + 2 * kv_width, c.hidden_size);
    products.plain("o", rows, c.hidden_size, q_width);
  }
  if (c.num_experts > 0) {
    for (const int64_t tokens : tiny ? std::vector<int64_t>{4} : std::vector<int64_t>{1, 8, 32, 128, 4096}) {
      products.experts(tokens);
    }
  }
  for (const int64_t size : tiny ? std::vector<int64_t>{256} : std::vector<int64_t>{4096, 8192}) {
    products.plain("square", size, size, size);
  }
  for (const int64_t batch : tiny ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 8, 32, 128}) {
    products.decode_attention(batch, context);
  }
  run.finish(std::move(table));
}

}  // namespace accord::bench
