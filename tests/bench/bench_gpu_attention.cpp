// Attention of many rows on the first GPU: forward as it runs there and with portable instructions alone, and
// backward; beside the rate of our own 8192^3 BF16 product in the same run. A pair of a query and a key that
// it sees counts 2 (d + v) operations per head forward and 5 (d + v) backward.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu_bench.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

using namespace accord;
using namespace accord::kernels::cuda;

namespace {

constexpr int32_t kPage = 16;
constexpr int32_t kBackwardRows = 64;

class Bench : public gpu_bench::GpuBench {
 public:
  Memory values(int64_t count) { return random(static_cast<size_t>(count) * sizeof(BF16), true); }

  void measure_product() {
    constexpr int64_t kSize = 8192;
    const Memory a = values(kSize * kSize);
    const Memory b = values(kSize * kSize);
    const Memory c = allocate(static_cast<size_t>(kSize * kSize) * sizeof(BF16));
    GemmForward g;
    g.b.data = b.data();
    g.a = a.as<BF16>();
    g.lda = kSize;
    g.m = kSize;
    g.n = kSize;
    g.k = kSize;
    g.c = {c.data(), kSize, true, false};
    product_ = 2.0 * kSize * kSize * kSize / (1e-3 * milliseconds([&](int) { gemm_forward(g, stream()); }));
    std::printf("own 8192^3 product %.0f TFLOP/s\n", product_ * 1e-12);
  }

  void report(const std::string& what, double ms, double operations) const {
    const double rate = operations / (ms * 1e-3);
    std::printf("%-52s %9.1f us %7.1f TFLOP/s %5.1f %%\n", what.c_str(), ms * 1e3, rate * 1e-12,
                100.0 * rate / product_);
    std::fflush(stdout);
  }

 private:
  double product_ = 1.0;
};

// `sequences` of `length` positions, of which the last `rows` are queries.
void attend(Bench& b, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t sequences, int32_t length,
            int32_t rows) {
  const AttentionDims d{heads, kv_heads, head_dim, head_dim, 1.0F / std::sqrt(static_cast<float>(head_dim))};
  const int64_t all = int64_t{sequences} * length;
  const int64_t queries = int64_t{sequences} * rows;
  const int64_t q_width = int64_t{heads} * head_dim;
  const int64_t k_width = int64_t{kv_heads} * head_dim;
  const Memory q = b.values(queries * q_width);
  const Memory k = b.values(all * k_width);
  const Memory v = b.values(all * k_width);
  const Memory out = b.allocate(static_cast<size_t>(queries * q_width) * 2);
  const Memory lse = b.allocate(static_cast<size_t>(queries * heads) * 4);
  std::vector<int32_t> pages;
  std::vector<AttentionTile> tiles;
  std::vector<AttentionBackwardTile> backward_tiles;
  const int32_t step = attention_tile_rows(d, false);
  for (int32_t s = 0; s < sequences; ++s) {
    const auto page_begin = static_cast<int32_t>(pages.size());
    for (int32_t i = 0; i < length; i += kPage) pages.push_back(s * length + i);
    for (int32_t i = 0; i < rows; i += step) {
      tiles.push_back({s * rows + i, std::min(step, rows - i), length - rows + i, page_begin});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const AttentionTile& x, const AttentionTile& y) {
    return x.first_position > y.first_position;  // the longest first
  });
  for (int32_t i = 0; i < length; i += kBackwardRows) {  // the most work first
    for (int32_t s = 0; s < sequences; ++s) backward_tiles.push_back({s * length, length, i});
  }
  const Memory device_pages = b.upload(pages);
  const Memory device_tiles = b.upload(tiles);
  AttentionForward a;
  a.dims = d;
  a.q = q.as<BF16>();
  a.q_stride = q_width;
  a.k = k.as<BF16>();
  a.k_stride = k_width;
  a.v = v.as<BF16>();
  a.v_stride = k_width;
  a.out = out.as<BF16>();
  a.out_stride = q_width;
  a.lse = lse.as<float>();
  a.pages = device_pages.as<int32_t>();
  a.tiles = device_tiles.as<AttentionTile>();
  a.num_tiles = static_cast<int32_t>(tiles.size());
  a.num_rows = queries;
  const double pairs = static_cast<double>(queries) * (length - rows + (rows + 1) / 2.0);
  const double operations = 4.0 * pairs * static_cast<double>(q_width);
  const std::string shape = std::to_string(heads) + "/" + std::to_string(kv_heads) + " x " +
                            std::to_string(head_dim) + ", " + std::to_string(sequences) + " x " +
                            std::to_string(rows) + " of " + std::to_string(length);
  const auto forward = [&](int) { attention_forward(a, b.stream()); };
  a.portable = true;
  b.report("portable forward " + shape, b.milliseconds(forward), operations);
  a.portable = false;
  b.report("forward " + shape, b.milliseconds(forward), operations);
  if (rows != length) return;

  const Memory dout = b.values(queries * q_width);
  const Memory delta = b.allocate(lse.bytes());
  const Memory dq = b.allocate(static_cast<size_t>(queries * q_width) * 4);
  const Memory dk = b.allocate(static_cast<size_t>(all * k_width) * 4);
  const Memory dv = b.allocate(dk.bytes());
  const Memory device_backward = b.upload(backward_tiles);
  AttentionBackwardArgs g;
  g.dims = d;
  g.q = a.q;
  g.q_stride = q_width;
  g.k = a.k;
  g.k_stride = k_width;
  g.v = a.v;
  g.v_stride = k_width;
  g.out = a.out;
  g.out_stride = q_width;
  g.dout = dout.as<BF16>();
  g.dout_stride = q_width;
  g.lse = a.lse;
  g.delta = delta.as<float>();
  g.dq = dq.as<float>();
  g.dk = dk.as<float>();
  g.dv = dv.as<float>();
  g.num_rows = queries;
  g.tiles = device_backward.as<AttentionBackwardTile>();
  g.num_tiles = static_cast<int32_t>(backward_tiles.size());
  const auto backward = [&](int) { attention_backward(g, b.stream()); };
  g.portable = true;
  b.report("portable backward " + shape, b.milliseconds(backward), 2.5 * operations);
  g.portable = false;
  b.report("backward " + shape, b.milliseconds(backward), 2.5 * operations);
}

}  // namespace

int main() {
  Bench b;
  b.measure_product();
  attend(b, 32, 4, 128, 4, 2048, 2048);
  attend(b, 32, 4, 128, 1, 8192, 8192);
  attend(b, 32, 4, 128, 16, 512, 512);
  attend(b, 32, 4, 128, 1, 8192, 512);
  attend(b, 9, 3, 64, 16, 512, 512);
  attend(b, 16, 16, 64, 4, 2048, 2048);
  return 0;
}
