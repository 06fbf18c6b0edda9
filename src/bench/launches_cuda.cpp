#include "bench/launches.hpp"
#include "device/launch.hpp"
#include "kernels/copy/read_cuda.hpp"
#include "kernels/gemm/fragments.hpp"
#include "kernels/gemm/fragments_cuda.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

// Of `weights` weights.
Work product_work(const cuda::GemmForward& g, int64_t weights, int64_t inputs) {
  const double values = real(g.n * g.k);
  return {weight_bytes(g.format, real(weights) * values) + 2 * real(inputs * g.k),
          (g.c.bf16 ? 2 : 4) * real(g.m * g.n), 2 * real(g.m) * values};
}

}  // namespace

cuda::GemmForward forward_product(WeightFormat format, int64_t m, int64_t n, int64_t k, bool bf16) {
  cuda::GemmForward g;
  g.format = format;
  g.m = m;
  g.n = n;
  g.k = k;
  g.lda = k;
  g.c = {nullptr, n, bf16, false};
  return g;
}

Product::Product(DeviceBench& bench, WeightFormat format, int64_t m, int64_t n, int64_t k, bool bf16)
    : bench_(bench), g_(forward_product(format, m, n, k, bf16)) {}

Work Product::work() const { return product_work(g_, 1, g_.m); }

void Product::operator()() {
  g_.a = bench_.bf16(g_.m * g_.k);
  g_.a_outer = g_.format == WeightFormat::kNVFP4 ? bench_.f32(g_.m) : nullptr;
  g_.b = bench_.weight(g_.format, g_.n, g_.k);
  g_.c.data = bench_.room((g_.c.bf16 ? 2 : 4) * g_.m * g_.n);
  cuda::gemm_forward(g_, bench_.stream());
}

ExpertProduct::ExpertProduct(DeviceBench& bench, WeightFormat format, const Sizes& sizes,
                             const Routed& routed, int64_t n, int64_t k, bool gather, int64_t num_tables,
                             int num_products)
    : bench_(bench),
      routed_(routed),
      inputs_(gather ? sizes.rows : sizes.sorted),
      num_tables_(num_tables),
      experts_(sizes.experts),
      num_products_(num_products),
      groups_{routed.groups, routed.groups},
      g_(forward_product(format, sizes.sorted, n, k, /*bf16=*/true)) {
  require(num_products == 1 || num_products == 2, "num_products == 1 || num_products == 2");
  entries_.reserve(static_cast<size_t>(num_tables * experts_));
  for (int64_t e = 0; e < num_tables * experts_; ++e) entries_.push_back(bench.weight(format, n, k));
  g_.fragments = routed.groups.tile_rows == kernels::kFragmentRows && kernels::takes_fragments(format, n, k);
  if (g_.fragments) {
    const int64_t bytes = kernels::fragments_bytes(format, n, k);
    fragments_ = bench.gpu().allocate(entries_.size() * static_cast<size_t>(bytes));
    for (size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].fragments = fragments_.as<uint8_t>() + static_cast<int64_t>(i) * bytes;
    }
  }
  tables_ = bench.gpu().upload(entries_);
  if (g_.fragments) {
    cuda::to_fragments(format, n, k, tables_.as<cuda::GemmWeight>(), static_cast<int32_t>(entries_.size()),
                       bench.stream());
  }
  g_.b_at_rest = true;
  for (cuda::GemmGroups& groups : groups_) {
    groups.at_rest = true;
    groups.gather = gather ? routed.tokens.as<int32_t>() : nullptr;
  }
}

Work ExpertProduct::work() const {
  Work work = product_work(g_, routed_.used_experts * num_products_, inputs_);
  work.written *= num_products_;
  work.operations *= num_products_;
  return work;
}

void ExpertProduct::operator()() {
  g_.a = bench_.bf16(inputs_ * g_.k);
  g_.a_outer = g_.format == WeightFormat::kNVFP4 ? bench_.f32(inputs_) : nullptr;
  std::vector<cuda::GemmForward> products;
  for (int i = 0; i < num_products_; ++i) {
    groups_[i].experts = tables_.as<cuda::GemmWeight>() + turn_++ % num_tables_ * experts_;
    products.push_back(g_);
    products.back().groups = &groups_[i];
    products.back().c.data = bench_.out<BF16>(g_.m * g_.n);
  }
  cuda::gemm_forward_together(products, bench_.stream());
}

double ExpertProduct::read_seconds() const {
  std::vector<cuda::GemmWeight> used;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const size_t e = i % static_cast<size_t>(experts_);
    if (routed_.begins[e + 1] > routed_.begins[e]) used.push_back(entries_[i]);
  }
  const Memory table = bench_.gpu().upload(used);
  const Memory sink = bench_.gpu().allocate(sizeof(uint32_t));
  const int64_t values = g_.n * g_.k;
  const auto all = static_cast<int64_t>(weight_bytes(g_.format, real(values)));
  const int64_t data = g_.format == WeightFormat::kBF16    ? 2 * values
                       : g_.format == WeightFormat::kMXFP8 ? values
                                                           : values / 2;
  int64_t turn = 0;
  return num_products_ * bench_.seconds([&] {
    cuda::plain_read(table.as<cuda::GemmWeight>() + turn++ % num_tables_ * routed_.used_experts,
                     static_cast<int32_t>(routed_.used_experts), data, all - data, sink.as<uint32_t>(),
                     bench_.stream());
  });
}

Attention::Attention(DeviceBench& bench, const ModelConfig& config, const Phase& phase,
                     const DeviceBatch& batch)
    : bench_(bench), phase_(phase), s_(config, phase), cache_(phase.cache_rows() * s_.kv_width) {
  a_.dims = attention_dims(config);
  a_.q_stride = a_.out_stride = s_.q_width;
  a_.k_stride = a_.v_stride = s_.kv_width;
  a_.pages = batch.pages.as<int32_t>();
  a_.tiles = batch.tiles.as<cuda::AttentionTile>();
  a_.num_tiles = batch.num_tiles;
  a_.num_rows = s_.rows;
  a_.few_rows = phase.decode;
  a_.max_splits = batch.max_splits;
  if (a_.max_splits == 1) return;
  a_.positions = batch.positions.as<int32_t>();
  partials_ = bench.gpu().allocate(
      static_cast<size_t>(cuda::attention_partials_bytes(a_.dims, s_.rows, a_.max_splits)));
  a_.partials = partials_.data();
}

Work Attention::work() const {
  const double pairs =
      phase_.decode ? real(s_.rows * phase_.length) : real(s_.rows) * real(phase_.length + 1) / 2;
  const double rows = 2 * real(s_.rows * s_.q_width);
  return {4 * real(cache_) + rows, rows, 4 * pairs * real(s_.q_width)};
}

void Attention::operator()() {
  a_.q = bench_.bf16(s_.rows * s_.q_width);
  a_.k = bench_.bf16(cache_);
  a_.v = bench_.bf16(cache_);
  a_.out = bench_.out<BF16>(s_.rows * s_.q_width);
  a_.lse = bench_.out<float>(s_.rows * s_.heads);
  cuda::attention_forward(a_, bench_.stream());
}

}  // namespace accord::bench
