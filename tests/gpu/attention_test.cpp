// Attention on the GPU: decode, chunked prefill and packed sequences agree bit for bit; all agree with fp64.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>

#include "base/philox.hpp"
#include "exact_reference.hpp"
#include "gpu.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace gpu_test;
using kernels::cuda::AttentionBackwardArgs;
using kernels::cuda::AttentionBackwardTile;
using kernels::cuda::AttentionDims;
using kernels::cuda::AttentionForward;
using kernels::cuda::AttentionTile;

namespace {

constexpr int64_t kPage = 16;

// Sequences packed one after the other, and the same keys and values in shuffled pages.
struct Problem {
  AttentionDims dims;
  bool shared = false;  // the values are the first columns of the keys
  std::vector<int32_t> lengths;
  int64_t rows = 0;
  std::vector<BF16> q, k, v;           // packed
  std::vector<BF16> paged_k, paged_v;  // shuffled pages
  std::vector<int32_t> packed_pages, shuffled_pages;
  std::vector<int32_t> page_begin;  // of each sequence, in both tables
  std::vector<int32_t> start;       // first packed row

  bool passes_values() const { return dims.head_dim != 576; }
  int64_t q_width() const { return int64_t{dims.num_heads} * dims.head_dim; }
  int64_t k_width() const { return int64_t{dims.num_kv_heads} * dims.head_dim; }
  int64_t v_width() const { return int64_t{dims.num_kv_heads} * dims.v_head_dim; }
  int64_t out_width() const { return int64_t{dims.num_heads} * dims.v_head_dim; }
};

std::vector<BF16> scatter(const std::vector<BF16>& x, int64_t width, const Problem& p, int64_t cache_rows) {
  std::vector<BF16> out(static_cast<size_t>(cache_rows * width), accord::to_bf16(3.0e4F));
  for (size_t s = 0; s < p.lengths.size(); ++s) {
    for (int64_t i = 0; i < p.lengths[s]; ++i) {
      const int64_t to = p.shuffled_pages[static_cast<size_t>(p.page_begin[s] + i / kPage)] + i % kPage;
      std::copy_n(x.begin() + (p.start[s] + i) * width, width, out.begin() + to * width);
    }
  }
  return out;
}

Problem make_problem(const AttentionDims& dims, const std::vector<int32_t>& lengths, bool shared = false,
                     Data data = Data::kNormal) {
  Problem p;
  p.dims = dims;
  p.shared = shared || dims.head_dim == 576;
  p.lengths = lengths;
  for (const int32_t n : lengths) {
    p.start.push_back(static_cast<int32_t>(p.rows));
    p.page_begin.push_back(static_cast<int32_t>(p.packed_pages.size()));
    for (int32_t i = 0; i < n; i += kPage) p.packed_pages.push_back(static_cast<int32_t>(p.rows) + i);
    p.rows += n;
  }
  const auto pages = static_cast<int64_t>(p.packed_pages.size());
  for (int64_t i = 0; i < pages; ++i) p.shuffled_pages.push_back(static_cast<int32_t>(i * kPage));
  PhiloxStream random(5, 5);
  for (size_t i = p.shuffled_pages.size(); i > 1; --i) {
    std::swap(p.shuffled_pages[i - 1], p.shuffled_pages[random.next_below(i)]);
  }
  p.q = to_bf16(make_data(data, p.rows, p.q_width(), 101));
  p.k = to_bf16(make_data(data, p.rows, p.k_width(), 102));
  p.v = to_bf16(make_data(data, p.rows, p.v_width(), 103));
  p.paged_k = scatter(p.k, p.k_width(), p, pages * kPage);
  p.paged_v = scatter(p.v, p.v_width(), p, pages * kPage);
  return p;
}

// One way to cut the rows: for each sequence the first positions of its calls.
struct Result {
  std::vector<BF16> out;
  std::vector<float> lse;
};

enum class Form { kPacked, kPortable, kChunks, kDecode, kDecodeInTurn };

// kPacked: every sequence at once from packed rows; kPortable: likewise, with portable instructions; kChunks:
// pieces of 1, 7, 100, ... rows over pages, each its own launch; kDecode: every row alone over pages, splits
// side by side; kDecodeInTurn: the same, splits in turn.
Result run(const Gpu& gpu, const Problem& p, Form form) {
  const bool packed = form == Form::kPacked || form == Form::kPortable;
  const bool decode = form == Form::kDecode || form == Form::kDecodeInTurn;
  const Memory q = gpu.upload(p.q);
  const Memory k = gpu.upload(packed ? p.k : p.paged_k);
  const Memory v = gpu.upload(packed ? p.v : p.paged_v);
  const Memory pages = gpu.upload(packed ? p.packed_pages : p.shuffled_pages);
  const Memory out = gpu.allocate(static_cast<size_t>(p.rows * p.out_width()) * 2);
  const Memory lse = gpu.allocate(static_cast<size_t>(p.rows * p.dims.num_heads) * 4);
  const int32_t tile_rows = kernels::cuda::attention_tile_rows(p.dims, decode);
  std::vector<std::vector<AttentionTile>> launches(1);
  std::vector<int32_t> positions;
  const int32_t chunk_sizes[] = {1, 7, 100, 300, 64, 33};
  for (size_t s = 0; s < p.lengths.size(); ++s) {
    int32_t position = 0;
    size_t piece = s;
    while (position < p.lengths[s]) {
      int32_t rows = packed ? p.lengths[s] : decode ? 1 : chunk_sizes[piece++ % std::size(chunk_sizes)];
      rows = std::min(rows, p.lengths[s] - position);
      for (int32_t done = 0; done < rows; done += tile_rows) {
        launches.back().push_back({p.start[s] + position + done, std::min(tile_rows, rows - done),
                                   position + done, p.page_begin[s]});
      }
      position += rows;
      if (form == Form::kChunks) launches.emplace_back();
    }
    for (int32_t i = 0; i < p.lengths[s]; ++i) positions.push_back(i);
  }
  const int32_t longest = *std::max_element(p.lengths.begin(), p.lengths.end());
  const Memory device_positions = gpu.upload(positions);
  AttentionForward a;
  a.dims = p.dims;
  a.q = q.as<BF16>();
  a.q_stride = p.q_width();
  a.k = k.as<BF16>();
  a.k_stride = p.k_width();
  if (p.passes_values()) {
    a.v = p.shared ? a.k : v.as<BF16>();
    a.v_stride = p.shared ? p.k_width() : p.v_width();
  }
  a.out = out.as<BF16>();
  a.out_stride = p.out_width();
  a.lse = lse.as<float>();
  a.pages = pages.as<int32_t>();
  a.few_rows = decode;
  a.portable = form == Form::kPortable;
  a.num_rows = p.rows;
  Memory partials;
  if (form == Form::kDecode) {
    a.max_splits = (longest + 511) / 512;
    a.positions = device_positions.as<int32_t>();
    partials = gpu.allocate(
        static_cast<size_t>(kernels::cuda::attention_partials_bytes(p.dims, p.rows, a.max_splits)));
    a.partials = partials.data();
  }
  for (const std::vector<AttentionTile>& tiles : launches) {
    const Memory device_tiles = gpu.upload(tiles);
    a.tiles = device_tiles.as<AttentionTile>();
    a.num_tiles = static_cast<int32_t>(tiles.size());
    kernels::cuda::attention_forward(a, gpu.handle());
    gpu.synchronize();
  }
  return {gpu.download<BF16>(out, static_cast<size_t>(p.rows * p.out_width())),
          gpu.download<float>(lse, static_cast<size_t>(p.rows * p.dims.num_heads))};
}

struct Reference {
  std::vector<double> out, lse, dq, dk, dv;
};

// fp64, from the same bf16 inputs.
Reference reference(const Problem& p, const std::vector<BF16>* dout) {
  const AttentionDims& d = p.dims;
  const int64_t group = d.num_heads / d.num_kv_heads;
  Reference r;
  r.out.resize(static_cast<size_t>(p.rows * p.out_width()));
  r.lse.resize(static_cast<size_t>(p.rows * d.num_heads));
  if (dout != nullptr) {
    r.dq.resize(static_cast<size_t>(p.rows * p.q_width()));
    r.dk.resize(static_cast<size_t>(p.rows * p.k_width()));
    r.dv.resize(static_cast<size_t>(p.rows * p.v_width()));
  }
  const auto value = [&](int64_t row, int64_t kv, int64_t j) {
    return static_cast<double>(
        p.shared ? to_float(p.k[static_cast<size_t>(row * p.k_width() + kv * d.head_dim + j)])
                 : to_float(p.v[static_cast<size_t>(row * p.v_width() + kv * d.v_head_dim + j)]));
  };
  const auto one_head = [&](int64_t kv) {
    for (size_t s = 0; s < p.lengths.size(); ++s) {
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        for (int64_t i = 0; i < p.lengths[s]; ++i) {
          const int64_t row = p.start[s] + i;
          std::vector<double> w(static_cast<size_t>(i + 1));
          double max = -INFINITY;
          for (int64_t j = 0; j <= i; ++j) {
            double dot = 0.0;
            for (int64_t e = 0; e < d.head_dim; ++e) {
              dot += static_cast<double>(
                         to_float(p.q[static_cast<size_t>(row * p.q_width() + h * d.head_dim + e)])) *
                     to_float(p.k[static_cast<size_t>((p.start[s] + j) * p.k_width() + kv * d.head_dim + e)]);
            }
            w[static_cast<size_t>(j)] = dot * d.scale;
            max = std::max(max, w[static_cast<size_t>(j)]);
          }
          double sum = 0.0;
          for (double& x : w) sum += x = std::exp(x - max);
          r.lse[static_cast<size_t>(row * d.num_heads + h)] = max + std::log(sum);
          double* out = r.out.data() + row * p.out_width() + h * d.v_head_dim;
          for (int64_t j = 0; j <= i; ++j) {
            for (int64_t e = 0; e < d.v_head_dim; ++e) {
              out[e] += w[static_cast<size_t>(j)] / sum * value(p.start[s] + j, kv, e);
            }
          }
          if (dout == nullptr) continue;
          const BF16* go = dout->data() + row * p.out_width() + h * d.v_head_dim;
          double delta = 0.0;
          for (int64_t e = 0; e < d.v_head_dim; ++e) delta += to_float(go[e]) * out[e];
          for (int64_t j = 0; j <= i; ++j) {
            const int64_t key = p.start[s] + j;
            const double weight = w[static_cast<size_t>(j)] / sum;
            double dp = 0.0;
            for (int64_t e = 0; e < d.v_head_dim; ++e) {
              dp += to_float(go[e]) * value(key, kv, e);
              r.dv[static_cast<size_t>(key * p.v_width() + kv * d.v_head_dim + e)] +=
                  weight * to_float(go[e]);
            }
            const double ds = weight * (dp - delta) * d.scale;
            for (int64_t e = 0; e < d.head_dim; ++e) {
              const auto q_at = static_cast<size_t>(row * p.q_width() + h * d.head_dim + e);
              const auto k_at = static_cast<size_t>(key * p.k_width() + kv * d.head_dim + e);
              r.dq[q_at] += ds * to_float(p.k[k_at]);
              r.dk[k_at] += ds * to_float(p.q[q_at]);
            }
          }
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int64_t kv = 0; kv < d.num_kv_heads; ++kv) threads.emplace_back(one_head, kv);
  for (std::thread& t : threads) t.join();
  return r;
}

template <class T>
double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double x = to_float(got[i]);
    error += (x - want[i]) * (x - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);  // NaN stays NaN
}

std::string label(const AttentionDims& d) {
  return std::to_string(d.head_dim) + "/" + std::to_string(d.v_head_dim) + " heads " +
         std::to_string(d.num_heads) + "/" + std::to_string(d.num_kv_heads);
}

AttentionDims dims_of(int32_t heads, int32_t kv_heads, int32_t d, int32_t v) {
  return {heads, kv_heads, d, v, 1.0F / std::sqrt(static_cast<float>(d))};
}

// dq, dk, dv of the forward's results.
std::array<std::vector<float>, 3> run_backward(const Gpu& gpu, const Problem& p, const Result& forward,
                                               const std::vector<BF16>& gradient, bool portable) {
  std::vector<AttentionBackwardTile> tiles;
  for (size_t s = 0; s < p.lengths.size(); ++s) {
    for (int32_t t = 0; t < p.lengths[s]; t += 64) tiles.push_back({p.start[s], p.lengths[s], t});
  }
  const Memory q = gpu.upload(p.q);
  const Memory k = gpu.upload(p.k);
  const Memory v = gpu.upload(p.v);
  const Memory out = gpu.upload(forward.out);
  const Memory dout = gpu.upload(gradient);
  const Memory lse = gpu.upload(forward.lse);
  const Memory device_tiles = gpu.upload(tiles);
  const Memory delta = gpu.allocate(forward.lse.size() * 4);
  const auto q_size = static_cast<size_t>(p.rows * p.q_width());
  const auto k_size = static_cast<size_t>(p.rows * p.k_width());
  const auto v_size = static_cast<size_t>(p.rows * p.v_width());
  const Memory dq = gpu.allocate(q_size * 4);
  const Memory dk = gpu.allocate(k_size * 4);
  const Memory dv = gpu.allocate(v_size * 4);
  AttentionBackwardArgs a;
  a.dims = p.dims;
  a.q = q.as<BF16>();
  a.q_stride = p.q_width();
  a.k = k.as<BF16>();
  a.k_stride = p.k_width();
  a.v = p.shared ? k.as<BF16>() : v.as<BF16>();
  a.v_stride = p.shared ? p.k_width() : p.v_width();
  a.out = out.as<BF16>();
  a.out_stride = p.out_width();
  a.dout = dout.as<BF16>();
  a.dout_stride = p.out_width();
  a.lse = lse.as<float>();
  a.delta = delta.as<float>();
  a.dq = dq.as<float>();
  a.dk = dk.as<float>();
  a.dv = dv.as<float>();
  a.num_rows = p.rows;
  a.tiles = device_tiles.as<AttentionBackwardTile>();
  a.num_tiles = static_cast<int32_t>(tiles.size());
  a.portable = portable;
  kernels::cuda::attention_backward(a, gpu.handle());
  return {gpu.download<float>(dq, q_size), gpu.download<float>(dk, k_size), gpu.download<float>(dv, v_size)};
}

}  // namespace

TEST_CASE("attention forms agree bit for bit and with fp64") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  // Every length around blocks and splits; heads in groups of 1, 3, 8, and more than a tile takes.
  struct Case {
    AttentionDims dims;
    std::vector<int32_t> lengths;
    bool shared = false;
  };
  const std::vector<int32_t> edges = {1, 2, 15, 16, 17, 63, 64, 65, 130, 511, 512, 513, 700, 1100};
  const Case cases[] = {{dims_of(9, 3, 64, 64), edges},
                        {dims_of(8, 1, 128, 128), edges},
                        {dims_of(4, 4, 128, 128), {1, 64, 100, 600}},
                        {dims_of(40, 2, 64, 64), {3, 70, 520}},
                        {dims_of(96, 1, 64, 64), {5, 65}},
                        {dims_of(4, 4, 192, 128), {1, 16, 65, 300, 530}},
                        {dims_of(16, 1, 576, 512), {1, 40, 64, 100, 560}},
                        {dims_of(24, 1, 576, 512), {70}},
                        {dims_of(4, 2, 16, 16), edges},
                        {dims_of(70, 1, 16, 16), {9, 66}},
                        {dims_of(4, 4, 32, 32), edges},
                        {dims_of(12, 2, 32, 32), {1, 64, 129, 600}},
                        {dims_of(4, 4, 48, 32), edges},
                        {dims_of(4, 1, 48, 32), edges, true}};
  for (const Case& c : cases) {
    const Problem p = make_problem(c.dims, c.lengths, c.shared);
    const Result packed = run(*gpu, p, Form::kPacked);
    for (const Form form : {Form::kPortable, Form::kChunks, Form::kDecode, Form::kDecodeInTurn}) {
      const Result other = run(*gpu, p, form);
      const int64_t wrong = different(packed.out, other.out) + different(packed.lse, other.lse);
      const char* name = form == Form::kPortable ? "portable"
                         : form == Form::kChunks ? "chunks"
                         : form == Form::kDecode ? "decode"
                                                 : "decode, splits in turn";
      std::printf("attention %-24s packed and %-24s %9zu outputs, %lld differ\n", label(c.dims).c_str(), name,
                  packed.out.size() + packed.lse.size(), static_cast<long long>(wrong));
      CHECK(wrong == 0);
    }
    const Reference want = reference(p, nullptr);
    const double out_error = relative_error(packed.out, want.out);
    const double lse_error = relative_error(packed.lse, want.lse);
    std::printf("attention %-24s against fp64: out %.2e, lse %.2e\n", label(c.dims).c_str(), out_error,
                lse_error);
    CHECK(out_error < 4e-3);  // bf16 weights and results
    CHECK(lse_error < 1e-6);
  }
}

TEST_CASE("attention of many rows has the portable kernel's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  // Groups of 1 to 8 heads, ragged tiles, splits that end in a tile; scores from close to 0 to far apart.
  for (const int32_t head_dim : {64, 128}) {
    for (int32_t group = 1; group <= 8; ++group) {
      const Data data = kAllData[static_cast<size_t>(group) % std::size(kAllData)];
      AttentionDims dims = dims_of(2 * group, 2, head_dim, head_dim);
      if (group % 3 == 0) dims.scale = 1.7F;
      const Problem p = make_problem(dims, {1, 33, 63, 128, 511, 515, 1030, 1601}, false, data);
      const Result portable = run(*gpu, p, Form::kPortable);
      for (const Form form : {Form::kPacked, Form::kChunks}) {
        const Result other = run(*gpu, p, form);
        const int64_t wrong = different(portable.out, other.out) + different(portable.lse, other.lse);
        std::printf("attention %-24s %-10s portable and %-8s %9zu outputs, %lld differ\n",
                    label(dims).c_str(), name_of(data), form == Form::kPacked ? "packed" : "chunks",
                    other.out.size() + other.lse.size(), static_cast<long long>(wrong));
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("attention of two short sequences agrees in all forms") {  // small enough for compute-sanitizer
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const AttentionDims& dims :
       {dims_of(3, 1, 64, 64), dims_of(2, 1, 128, 128), dims_of(2, 1, 192, 128), dims_of(2, 1, 576, 512),
        dims_of(4, 2, 16, 16), dims_of(2, 2, 32, 32), dims_of(4, 1, 48, 32)}) {
    const Problem p = make_problem(dims, {70, 5}, dims.head_dim == 48);
    const Result packed = run(*gpu, p, Form::kPacked);
    for (const Form form : {Form::kChunks, Form::kDecode, Form::kDecodeInTurn}) {
      const Result other = run(*gpu, p, form);
      CHECK(different(packed.out, other.out) + different(packed.lse, other.lse) == 0);
    }
    CHECK(relative_error(packed.out, reference(p, nullptr).out) < 4e-3);
  }
}

TEST_CASE("attention of scores that are not finite is NaN") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  Problem p = make_problem(dims_of(2, 1, 64, 64), {100});
  for (int64_t i = 0; i < 64; ++i)
    p.q[static_cast<size_t>(50 * p.q_width() + i)] = BF16{0x7fc0};  // row 50, head 0
  const Result r = run(*gpu, p, Form::kPacked);
  int64_t nans = 0;
  for (const BF16 x : r.out) nans += std::isnan(to_float(x)) ? 1 : 0;
  CHECK(nans == 64);
  CHECK(std::isnan(to_float(r.out[50 * 128])));
}

TEST_CASE("attention backward agrees with fp64 and with itself") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  struct Case {
    AttentionDims dims;
    std::vector<int32_t> lengths;
    bool shared = false;
  };
  const Case cases[] = {{dims_of(9, 3, 64, 64), {1, 2, 63, 64, 65, 200}},
                        {dims_of(8, 1, 128, 128), {17, 130, 300}},
                        {dims_of(2, 2, 192, 128), {5, 129}},
                        {dims_of(4, 1, 576, 512), {70}},
                        {dims_of(4, 2, 16, 16), {1, 2, 63, 64, 65, 200}},
                        {dims_of(6, 2, 32, 32), {1, 2, 63, 64, 65, 200}},
                        {dims_of(4, 4, 48, 32), {17, 130, 300}},
                        {dims_of(4, 1, 48, 32), {17, 130, 300}, true}};
  for (const Case& c : cases) {
    const Problem p = make_problem(c.dims, c.lengths, c.shared);
    const Result forward = run(*gpu, p, Form::kPacked);
    const std::vector<BF16> gradient = to_bf16(make_data(Data::kNormal, p.rows, p.out_width(), 104));
    const auto first = run_backward(*gpu, p, forward, gradient, false);
    const auto second = run_backward(*gpu, p, forward, gradient, false);
    for (size_t i = 0; i < first.size(); ++i) CHECK(different(first[i], second[i]) == 0);
    const Reference want = reference(p, &gradient);
    const double dq_error = relative_error(first[0], want.dq);
    const double dk_error = relative_error(first[1], want.dk);
    const double dv_error = relative_error(first[2], want.dv);
    std::printf("attention backward %-24s against fp64: dq %.2e, dk %.2e, dv %.2e\n", label(c.dims).c_str(),
                dq_error, dk_error, dv_error);
    CHECK(dq_error < 1e-2);
    CHECK(dk_error < 1e-2);
    CHECK(dv_error < 1e-2);
  }
}

TEST_CASE("attention backward has the portable kernel's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const int32_t head_dim : {64, 128}) {
    for (int32_t group = 1; group <= 8; ++group) {
      const Data data = group % 2 == 0 ? Data::kNormal : Data::kPositive;
      const Problem p = make_problem(dims_of(2 * group, 2, head_dim, head_dim),
                                     {1, 63, 64, 65, 128, 129, 320, 777}, false, data);
      const Result forward = run(*gpu, p, Form::kPacked);
      const std::vector<BF16> gradient = to_bf16(make_data(data, p.rows, p.out_width(), 104));
      const auto portable = run_backward(*gpu, p, forward, gradient, true);
      for (int repeat = 0; repeat < 2; ++repeat) {
        const auto other = run_backward(*gpu, p, forward, gradient, false);
        const int64_t wrong[3] = {different(portable[0], other[0]), different(portable[1], other[1]),
                                  different(portable[2], other[2])};
        std::printf("attention backward %-24s %-10s portable and not: dq %lld, dk %lld, dv %lld differ\n",
                    label(p.dims).c_str(), name_of(data), static_cast<long long>(wrong[0]),
                    static_cast<long long>(wrong[1]), static_cast<long long>(wrong[2]));
        CHECK(wrong[0] + wrong[1] + wrong[2] == 0);
      }
    }
  }
}
