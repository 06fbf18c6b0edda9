// Times of products and attention on the first GPU, with the share of the ceiling measured in the same run:
// bytes that must be read over the rate of a large copy (which counts reads and writes), operations over
// --flops (the rate of a library's 8192^3 BF16 product, in TFLOP/s, measured beside this program).
// Products of experts are also compared with a plain read of the same weights in the same run.
//   bench_gpu_products [--flops X] [experts | dense | [one | even | pair] FORMAT TOKENS N K]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/philox.hpp"
#include "gpu_bench.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/copy/read_cuda.hpp"
#include "kernels/gemm/fragments.hpp"
#include "kernels/gemm/fragments_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

using namespace accord;
using namespace accord::kernels::cuda;

namespace {

class Bench : public gpu_bench::GpuBench {
 public:
  explicit Bench(double flops) : flops_(flops) {}

  void measure_copy() {
    copy_ = copy_bytes_per_second() * 1e-12;
    std::printf("copy %.2f TB/s (read and write)\n", copy_);
  }

  void report(const std::string& what, double ms, double bytes, double operations) const {
    const double tbs = bytes / ms * 1e-9;
    const double tflops = operations / ms * 1e-9;
    std::printf("%-62s %9.2f us %7.2f TB/s %5.1f %% %8.1f TFLOP/s", what.c_str(), ms * 1e3, tbs,
                100.0 * tbs / copy_, tflops);
    if (flops_ > 0.0) std::printf(" %5.1f %%", 100.0 * tflops / flops_);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  double flops_;
  double copy_ = 0.0;
};

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4};
const char* name_of(WeightFormat f) {
  return f == WeightFormat::kBF16 ? "BF16" : f == WeightFormat::kMXFP8 ? "MXFP8" : "NVFP4";
}
double bytes_of(WeightFormat f, double values) {
  return f == WeightFormat::kBF16    ? 2.0 * values
         : f == WeightFormat::kMXFP8 ? values * 33 / 32
                                     : values * 9 / 16;
}

struct Weights {
  Memory data, scales, outer;
  GemmWeight at(WeightFormat f, int64_t index, int64_t n, int64_t k) const {
    const int64_t values = n * k * index;
    const int64_t bytes = f == WeightFormat::kBF16    ? values * 2
                          : f == WeightFormat::kMXFP8 ? values
                                                      : values / 2;
    const int64_t scale = f == WeightFormat::kMXFP8   ? values / 32
                          : f == WeightFormat::kNVFP4 ? values / 16
                                                      : 0;
    return {data.as<uint8_t>() + bytes, scales.as<uint8_t>() + scale, outer.as<float>()};
  }
};
Weights make_weights(Bench& b, WeightFormat f, int64_t values) {
  Weights w;
  w.data = b.random(static_cast<size_t>(f == WeightFormat::kBF16    ? values * 2
                                        : f == WeightFormat::kMXFP8 ? values
                                                                    : values / 2),
                    f == WeightFormat::kBF16);
  w.scales = b.scales(static_cast<size_t>(values / 16), f == WeightFormat::kMXFP8 ? 120 : 0x38);
  w.outer = b.upload(std::vector<float>{1.0F});
  return w;
}

void plain(Bench& b, const char* what, int64_t m, int64_t n, int64_t k) {
  // Enough copies of the weight to leave the cache.
  const int64_t copies = std::clamp<int64_t>((int64_t{256} << 20) / (n * k / 2) + 1, 1, 64);
  const Memory a = b.random(static_cast<size_t>(m * k * 2), true);
  const Memory outer = b.upload(std::vector<float>(static_cast<size_t>(m), 1.0F));
  const Memory c = b.allocate(static_cast<size_t>(m * n * 2));
  for (const WeightFormat f : kFormats) {
    const Weights w = make_weights(b, f, copies * n * k);
    const double ms = b.milliseconds([&](int i) {
      GemmForward g;
      g.format = f;
      g.m = m;
      g.n = n;
      g.k = k;
      g.a = a.as<BF16>();
      g.lda = k;
      g.a_outer = outer.as<float>();
      g.b = w.at(f, i % copies, n, k);
      g.c = {c.data(), n, true, false};
      gemm_forward(g, b.stream());
    });
    const double values = static_cast<double>(n * k);
    b.report(std::string(what) + " " + name_of(f) + " M=" + std::to_string(m) + " N=" + std::to_string(n) +
                 " K=" + std::to_string(k),
             ms, bytes_of(f, values) + 2.0 * static_cast<double>(m * (n + k)),
             2.0 * static_cast<double>(m) * values);
  }
}

// `tokens` tokens, 8 of 128 experts each, at random or every expert as often. `only`: this format alone.
// `pair`: two products of the same rows in one call.
void experts(Bench& b, int64_t tokens, int64_t n, int64_t k, const char* only = nullptr, bool even = false,
             bool pair = false) {
  const int32_t count = 128;
  PhiloxStream random(9, 9);
  std::vector<std::vector<int32_t>> of(count);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> ids(count);
    for (int32_t e = 0; e < count; ++e) ids[static_cast<size_t>(e)] = e;
    for (size_t s = 0; s < 8; ++s) {
      if (even) {
        ids[s] = static_cast<int32_t>((t * 8 + static_cast<int64_t>(s)) % count);
      } else {
        std::swap(ids[s], ids[s + random.next_below(count - s)]);
      }
      of[static_cast<size_t>(ids[s])].push_back(static_cast<int32_t>(t));
    }
  }
  std::vector<int32_t> offsets = {0};
  std::vector<int32_t> gather;
  int64_t used = 0;
  for (const auto& list : of) {
    gather.insert(gather.end(), list.begin(), list.end());
    offsets.push_back(static_cast<int32_t>(gather.size()));
    used += list.empty() ? 0 : 1;
  }
  const auto rows = static_cast<int64_t>(gather.size());
  const Memory device_offsets = b.upload(offsets);
  const Memory device_gather = b.upload(gather);
  const Memory a = b.random(static_cast<size_t>(tokens * k * 2), true);
  const Memory outer = b.upload(std::vector<float>(static_cast<size_t>(tokens), 1.0F));
  const int products = pair ? 2 : 1;
  const Memory c = b.allocate(static_cast<size_t>(products * rows * n * 2));
  const Memory sink = b.allocate(4);
  for (const WeightFormat f : kFormats) {
    if (only != nullptr && std::strcmp(only, name_of(f)) != 0) continue;
    // Layers in turn, so that more than four times the L2 passes before a weight is read again.
    const double values = static_cast<double>(used * n * k);
    const int64_t layers = static_cast<int64_t>(256e6 / bytes_of(f, values)) + 1;
    const Weights w = make_weights(b, f, layers * count * n * k);
    const bool has_fragments = kernels::takes_fragments(f, n, k);
    const int64_t fragment_bytes = has_fragments ? kernels::fragments_bytes(f, n, k) : 0;
    const Memory fragment_memory = b.allocate(static_cast<size_t>(layers * count * fragment_bytes) + 16);
    std::vector<Memory> tables;
    std::vector<Memory> used_tables;
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<GemmWeight> table;
      std::vector<GemmWeight> used_table;
      for (int32_t e = 0; e < count; ++e) {
        table.push_back(w.at(f, layer * count + e, n, k));
        if (has_fragments) {
          table.back().fragments = fragment_memory.as<uint8_t>() + (layer * count + e) * fragment_bytes;
        }
        if (!of[static_cast<size_t>(e)].empty()) used_table.push_back(table.back());
      }
      tables.push_back(b.upload(table));
      used_tables.push_back(b.upload(used_table));
      if (has_fragments) to_fragments(f, n, k, tables.back().as<GemmWeight>(), count, b.stream());
    }
    if (has_fragments) {
      const double make = b.milliseconds([&](int i) {
        to_fragments(f, n, k, tables[static_cast<size_t>(i % layers)].as<GemmWeight>(), count, b.stream());
      });
      std::printf("fragments of a layer: %.1f us, %.2f TB/s read and written\n", make * 1e3,
                  2.0 * static_cast<double>(count * fragment_bytes) / make * 1e-9);
    }
    const int32_t tile_rows = group_tile_rows(rows, count);
    const int32_t bound = group_tiles_bound(rows, count, tile_rows);
    const Memory tiles =
        b.allocate(static_cast<size_t>(group_list_size(rows, count, tile_rows)) * sizeof(GroupTile));
    const Memory num_tiles = b.allocate(4);
    build_group_tiles(device_offsets.as<int32_t>(), count, tile_rows, tiles.as<GroupTile>(),
                      num_tiles.as<int32_t>(), b.stream());
    const auto data_bytes = static_cast<int64_t>(bytes_of(WeightFormat::kBF16, static_cast<double>(n * k))) /
                            (f == WeightFormat::kBF16    ? 1
                             : f == WeightFormat::kMXFP8 ? 2
                                                         : 4);
    const auto scale_bytes = static_cast<int64_t>(bytes_of(f, static_cast<double>(n * k))) - data_bytes;
    const double read_ms = b.milliseconds([&](int i) {
      plain_read(used_tables[static_cast<size_t>(i % layers)].as<GemmWeight>(), static_cast<int32_t>(used),
                 data_bytes, scale_bytes, sink.as<uint32_t>(), b.stream());
    });
    for (const bool fragments : {false, true}) {
      if (fragments && !has_fragments) break;
      const double ms = b.milliseconds([&](int i) {
        GemmGroups groups;
        groups.tiles = tiles.as<GroupTile>();
        groups.num_tiles = num_tiles.as<int32_t>();
        groups.max_tiles = bound;
        groups.tile_rows = tile_rows;
        groups.experts = tables[static_cast<size_t>(products * i % layers)].as<GemmWeight>();
        groups.gather = device_gather.as<int32_t>();
        GemmForward g;
        g.format = f;
        g.m = rows;
        g.n = n;
        g.k = k;
        g.a = a.as<BF16>();
        g.lda = k;
        g.a_outer = outer.as<float>();
        g.c = {c.data(), n, true, false};
        g.groups = &groups;
        g.b_at_rest = groups.at_rest = true;  // list and weights are older than the product before
        g.fragments = fragments;
        if (!pair) return gemm_forward(g, b.stream());
        GemmGroups others = groups;
        others.experts = tables[static_cast<size_t>((2 * i + 1) % layers)].as<GemmWeight>();
        GemmForward other = g;
        other.groups = &others;
        other.c.data = c.as<BF16>() + rows * n;
        gemm_forward_together(std::array{g, other}, b.stream());
      });
      b.report("experts " + std::string(name_of(f)) + " tokens=" + std::to_string(tokens) +
                   " used=" + std::to_string(used) + " N=" + std::to_string(n) + " K=" + std::to_string(k) +
                   (fragments ? " fragments" : "") + (pair ? " two" : ""),
               ms,
               products * (bytes_of(f, values) + 2.0 * static_cast<double>(rows * n)) +
                   2.0 * static_cast<double>(tokens * k),
               products * 2.0 * static_cast<double>(rows) * static_cast<double>(n * k));
      std::printf("%62s %9.2f us, of which the product reaches %5.1f %%\n", "plain read",
                  products * read_ms * 1e3, products * 100.0 * read_ms / ms);
    }
  }
}

void backward(Bench& b, int64_t tokens, int64_t n, int64_t k) {
  const Memory dy = b.random(static_cast<size_t>(tokens * n * 2), true);
  const Memory x = b.random(static_cast<size_t>(tokens * k * 2), true);
  const Memory w = b.random(static_cast<size_t>(n * k * 2), true);
  const Memory dx = b.allocate(static_cast<size_t>(tokens * k * 4));
  const Memory dw = b.scales(static_cast<size_t>(n * k * 4), 0);
  GemmBackward g;
  g.a = dy.as<BF16>();
  g.lda = n;
  g.ldb = k;
  g.n = k;
  const double operations = 2.0 * static_cast<double>(tokens) * static_cast<double>(n * k);
  const std::string shape =
      " tokens=" + std::to_string(tokens) + " N=" + std::to_string(n) + " K=" + std::to_string(k);
  double ms = b.milliseconds([&](int) {
    g.m = tokens;
    g.l = n;
    g.b = w.as<BF16>();
    g.c = {dx.data(), k, false, false};
    gemm_dgrad(g, b.stream());
  });
  b.report("dgrad" + shape, ms, 2.0 * static_cast<double>(tokens * n + n * k + 2 * tokens * k), operations);
  ms = b.milliseconds([&](int) {
    g.m = n;
    g.l = tokens;
    g.b = x.as<BF16>();
    g.c = {dw.data(), k, false, true};
    gemm_wgrad(g, b.stream());
  });
  b.report("wgrad" + shape, ms, 2.0 * static_cast<double>(tokens * (n + k) + 4 * n * k), operations);
}

AttentionDims dims_of(int32_t heads, int32_t kv_heads, int32_t d, int32_t v) {
  return {heads, kv_heads, d, v, 0.1F};
}

void decode(Bench& b, const AttentionDims& d, int64_t batch, int64_t context) {
  const int64_t rows = batch * context;
  const int64_t k_width = int64_t{d.num_kv_heads} * d.head_dim;
  const int64_t v_width = int64_t{d.num_kv_heads} * d.v_head_dim;
  const bool shared = d.head_dim == 576;
  const Memory q = b.random(static_cast<size_t>(batch * d.num_heads * d.head_dim * 2), true);
  const Memory k = b.random(static_cast<size_t>(rows * k_width * 2), true);
  const Memory v = b.random(static_cast<size_t>(shared ? 16 : rows * v_width * 2), true);
  const Memory out = b.allocate(static_cast<size_t>(batch * d.num_heads * d.v_head_dim * 2));
  const Memory lse = b.allocate(static_cast<size_t>(batch * d.num_heads * 4));
  std::vector<int32_t> pages;
  std::vector<AttentionTile> tiles;
  for (int64_t s = 0; s < batch; ++s) {
    tiles.push_back(
        {static_cast<int32_t>(s), 1, static_cast<int32_t>(context - 1), static_cast<int32_t>(pages.size())});
    for (int64_t i = 0; i < context; i += 16) pages.push_back(static_cast<int32_t>(s * context + i));
  }
  PhiloxStream random(7, 7);
  for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random.next_below(i)]);
  const Memory device_pages = b.upload(pages);
  const Memory device_tiles = b.upload(tiles);
  const Memory positions =
      b.upload(std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(context - 1)));
  AttentionForward a;
  a.dims = d;
  a.q = q.as<BF16>();
  a.q_stride = int64_t{d.num_heads} * d.head_dim;
  a.k = k.as<BF16>();
  a.k_stride = k_width;
  a.v = shared ? nullptr : v.as<BF16>();
  a.v_stride = v_width;
  a.out = out.as<BF16>();
  a.out_stride = int64_t{d.num_heads} * d.v_head_dim;
  a.lse = lse.as<float>();
  a.pages = device_pages.as<int32_t>();
  a.tiles = device_tiles.as<AttentionTile>();
  a.num_tiles = static_cast<int32_t>(tiles.size());
  a.few_rows = true;
  a.max_splits = static_cast<int32_t>((context + 511) / 512);
  a.positions = positions.as<int32_t>();
  a.num_rows = batch;
  const Memory partials = b.allocate(static_cast<size_t>(attention_partials_bytes(d, batch, a.max_splits)));
  a.partials = partials.data();
  const double ms = b.milliseconds([&](int) { attention_forward(a, b.stream()); });
  b.report("attention decode " + std::to_string(d.num_heads) + "/" + std::to_string(d.num_kv_heads) + " x " +
               std::to_string(d.head_dim) + "/" + std::to_string(d.v_head_dim) +
               " batch=" + std::to_string(batch) + " context=" + std::to_string(context),
           ms, 2.0 * static_cast<double>(rows * (k_width + (shared ? 0 : v_width))),
           2.0 * static_cast<double>(rows * d.num_heads * (d.head_dim + d.v_head_dim)));
}

void training(Bench& b, const AttentionDims& d, int64_t sequences, int64_t length) {
  const int64_t rows = sequences * length;
  const int64_t q_width = int64_t{d.num_heads} * d.head_dim;
  const int64_t k_width = int64_t{d.num_kv_heads} * d.head_dim;
  const int64_t v_width = int64_t{d.num_kv_heads} * d.v_head_dim;
  const int64_t o_width = int64_t{d.num_heads} * d.v_head_dim;
  const bool shared = d.head_dim == 576;
  const Memory q = b.random(static_cast<size_t>(rows * q_width * 2), true);
  const Memory k = b.random(static_cast<size_t>(rows * k_width * 2), true);
  const Memory v = b.random(static_cast<size_t>(rows * v_width * 2), true);
  const Memory out = b.allocate(static_cast<size_t>(rows * o_width * 2));
  const Memory dout = b.random(static_cast<size_t>(rows * o_width * 2), true);
  const Memory lse = b.allocate(static_cast<size_t>(rows * d.num_heads * 4));
  const Memory delta = b.allocate(lse.bytes());
  const Memory dq = b.allocate(static_cast<size_t>(rows * q_width * 4));
  const Memory dk = b.allocate(static_cast<size_t>(rows * k_width * 4));
  const Memory dv = b.allocate(static_cast<size_t>(rows * v_width * 4));
  std::vector<int32_t> pages;
  std::vector<AttentionTile> tiles;
  std::vector<AttentionBackwardTile> backward_tiles;
  const int32_t tile_rows = attention_tile_rows(d, false);
  for (int64_t s = 0; s < sequences; ++s) {
    const auto start = static_cast<int32_t>(s * length);
    const auto page_begin = static_cast<int32_t>(pages.size());
    for (int32_t i = 0; i < length; i += 16) pages.push_back(start + i);
    for (int32_t i = 0; i < length; i += tile_rows) {
      tiles.push_back({start + i, std::min(tile_rows, static_cast<int32_t>(length) - i), i, page_begin});
    }
  }
  for (int32_t i = 0; i < length; i += 64) {  // the most work first
    for (int64_t s = 0; s < sequences; ++s) {
      backward_tiles.push_back({static_cast<int32_t>(s * length), static_cast<int32_t>(length), i});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const AttentionTile& x, const AttentionTile& y) {
    return x.first_position > y.first_position;  // the longest first
  });
  const Memory device_pages = b.upload(pages);
  const Memory device_tiles = b.upload(tiles);
  const Memory device_backward = b.upload(backward_tiles);
  AttentionForward a;
  a.dims = d;
  a.q = q.as<BF16>();
  a.q_stride = q_width;
  a.k = k.as<BF16>();
  a.k_stride = k_width;
  a.v = shared ? nullptr : v.as<BF16>();
  a.v_stride = v_width;
  a.out = out.as<BF16>();
  a.out_stride = o_width;
  a.lse = lse.as<float>();
  a.pages = device_pages.as<int32_t>();
  a.tiles = device_tiles.as<AttentionTile>();
  a.num_tiles = static_cast<int32_t>(tiles.size());
  a.num_rows = rows;
  const std::string shape = std::to_string(d.num_heads) + "/" + std::to_string(d.num_kv_heads) + " x " +
                            std::to_string(d.head_dim) + "/" + std::to_string(d.v_head_dim) + " " +
                            std::to_string(sequences) + " x " + std::to_string(length);
  const double pairs =
      static_cast<double>(sequences) * static_cast<double>(length) * static_cast<double>(length) / 2.0;
  const double forward = 2.0 * pairs * static_cast<double>(d.num_heads * (d.head_dim + d.v_head_dim));
  const double bytes = 2.0 * static_cast<double>(rows * (q_width + k_width + v_width + o_width));
  double ms = b.milliseconds([&](int) { attention_forward(a, b.stream()); });
  b.report("attention forward " + shape, ms, bytes, forward);
  AttentionBackwardArgs g;
  g.dims = d;
  g.q = q.as<BF16>();
  g.q_stride = q_width;
  g.k = k.as<BF16>();
  g.k_stride = k_width;
  g.v = shared ? k.as<BF16>() : v.as<BF16>();
  g.v_stride = shared ? k_width : v_width;
  g.out = out.as<BF16>();
  g.out_stride = o_width;
  g.dout = dout.as<BF16>();
  g.dout_stride = o_width;
  g.lse = lse.as<float>();
  g.delta = delta.as<float>();
  g.dq = dq.as<float>();
  g.dk = dk.as<float>();
  g.dv = dv.as<float>();
  g.num_rows = rows;
  g.tiles = device_backward.as<AttentionBackwardTile>();
  g.num_tiles = static_cast<int32_t>(backward_tiles.size());
  ms = b.milliseconds([&](int) { attention_backward(g, b.stream()); });
  b.report("attention backward (2.5 x forward operations) " + shape, ms, 3.0 * bytes, 2.5 * forward);
}

}  // namespace

void all_experts(Bench& b) {
  for (const int64_t tokens : {1, 8, 32, 128, 256}) {
    experts(b, tokens, 1536, 2048);
    experts(b, tokens, 2048, 768);
  }
  experts(b, 4096, 1536, 2048);
  experts(b, 4096, 2048, 768);
}

// The plain products of a decoding step: SmolLM2-135M, then q, k or v, and o of Qwen3-30B-A3B.
void all_dense(Bench& b) {
  for (const int64_t m : {1, 16, 64, 128}) {
    plain(b, "SmolLM2", m, 576, 576);
    plain(b, "SmolLM2", m, 192, 576);
    plain(b, "SmolLM2", m, 1536, 576);
    plain(b, "SmolLM2", m, 576, 1536);
    plain(b, "q", m, 4096, 2048);
    plain(b, "k", m, 512, 2048);
    plain(b, "o", m, 2048, 4096);
  }
}

int main(int argc, char** argv) {
  double flops = 0.0;
  bool only_experts = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--flops") == 0 && i + 1 < argc) flops = std::atof(argv[++i]);
    if (std::strcmp(argv[i], "experts") == 0) only_experts = true;
    if (std::strcmp(argv[i], "dense") == 0) {
      Bench b(flops);
      all_dense(b);
      return 0;
    }
    const bool even = std::strcmp(argv[i], "even") == 0;
    const bool pair = std::strcmp(argv[i], "pair") == 0;
    if ((even || pair || std::strcmp(argv[i], "one") == 0) &&
        i + 4 < argc) {  // for a profiler: one FORMAT TOKENS N K
      Bench b(flops);
      experts(b, std::atoll(argv[i + 2]), std::atoll(argv[i + 3]), std::atoll(argv[i + 4]), argv[i + 1], even,
              pair);
      return 0;
    }
  }
  Bench b(flops);
  b.measure_copy();
  if (only_experts) {
    for (const int64_t m : {1, 16}) {
      plain(b, "qkv", m, 5120, 2048);
      plain(b, "o", m, 2048, 4096);
    }
    all_experts(b);
    return 0;
  }
  for (const int64_t m : {1, 8, 16, 64}) {
    plain(b, "qkv", m, 5120, 2048);
    plain(b, "o", m, 2048, 4096);
  }
  for (const int64_t m : {16, 64}) {
    plain(b, "SmolLM2", m, 1536, 576);
    plain(b, "SmolLM2", m, 576, 1536);
  }
  plain(b, "square", 16, 8192, 8192);
  all_experts(b);
  plain(b, "large", 4096, 4096, 4096);
  plain(b, "large", 8192, 8192, 8192);
  plain(b, "SmolLM2", 8192, 1536, 576);
  plain(b, "SmolLM2", 8192, 576, 1536);
  backward(b, 8192, 4096, 4096);
  backward(b, 8192, 1536, 576);
  decode(b, dims_of(32, 4, 128, 128), 1, 2048);
  decode(b, dims_of(32, 4, 128, 128), 16, 2048);
  decode(b, dims_of(32, 4, 128, 128), 128, 2048);
  decode(b, dims_of(9, 3, 64, 64), 128, 512);
  decode(b, dims_of(16, 1, 576, 512), 32, 2048);
  decode(b, dims_of(128, 1, 576, 512), 32, 2048);
  training(b, dims_of(32, 4, 128, 128), 8, 2048);
  training(b, dims_of(9, 3, 64, 64), 16, 512);
  training(b, dims_of(16, 16, 192, 128), 4, 1024);
  training(b, dims_of(16, 1, 576, 512), 2, 1024);
  return 0;
}
