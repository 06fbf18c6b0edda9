// Products at decode sizes and large ones, and attention at other batches than the layers' tables have.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/launches.hpp"
#include "bench/operations.hpp"

namespace accord::bench {

namespace {

class Products {
 public:
  Products(DeviceBench& bench, const ModelConfig& config, Table& table)
      : bench_(bench),
        config_(config),
        table_(table),
        rotated_bytes_(kCaches * real(must(bench.gpu().device().info()).l2_bytes)) {}

  void plain(const std::string& what, int64_t m, int64_t n, int64_t k) {
    if (!table_.wants("gemm")) return;
    for (size_t i = 0; i < kFormats.size(); ++i) {
      Product launch(bench_, kFormats[i], m, n, k, /*bf16=*/true);
      table_.add(i, "gemm", fmt::format("{}, {} rows, {} x {}", what, m, n, k), launch.work(),
                 bench_.seconds([&] { launch(); }));
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
    const DeviceBatch rows(bench_.gpu(), config_, phase);
    Attention launch(bench_, config_, phase, rows);
    table_.add(0, "attention", fmt::format("attention, batch {} at context {}", batch, context),
               launch.work(), bench_.seconds([&] { launch(); }));
  }

 private:
  void grouped(const std::string& name, const Sizes& s, const Routed& routed, int64_t n, int64_t k,
               bool gather) {
    for (size_t i = 0; i < kFormats.size(); ++i) {
      // Layers in turn, so that more than the cache holds passes before a weight is read again.
      const double used_bytes = weight_bytes(kFormats[i], real(routed.used_experts * n * k));
      const auto num_tables = static_cast<int64_t>(rotated_bytes_ / used_bytes) + 1;
      ExpertProduct launch(bench_, kFormats[i], s, routed, n, k, gather, num_tables);
      const double read_seconds = launch.read_seconds();
      table_.add_beside_read(i, "gemm", fmt::format("{} ({} used), {} x {}", name, routed.used_experts, n, k),
                             launch.work(), bench_.seconds([&] { launch(); }), read_seconds);
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
  Table table(bench.ceilings(), shape.name + ", products and attention by the number of rows",
              format_columns(), run.options.op);
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
