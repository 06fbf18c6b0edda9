// Attention of many rows on the first GPU: forward as it runs there and with portable instructions alone, and
// backward; beside the rate of our own 8192^3 BF16 product in the same run. A pair of a query and a key that
// it sees counts 2 (d + v) operations per head forward and 5 (d + v) backward.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/philox.hpp"
#include "gpu.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

using namespace accord;
using namespace accord::kernels::cuda;
using gpu_test::Gpu;
using gpu_test::must;

namespace {

constexpr int32_t kPage = 16;
constexpr int32_t kBackwardRows = 64;

class Bench {
 public:
  explicit Bench(const Gpu& gpu)
      : gpu_(gpu), start_(must(Event::create(gpu.device()))), end_(must(Event::create(gpu.device()))) {}

  const Gpu& gpu() const { return gpu_; }

  Memory random(int64_t elements) {
    constexpr int64_t kValues = int64_t{1} << 20;
    PhiloxStream random(1, seed_++);
    std::vector<BF16> values(static_cast<size_t>(std::min(elements, kValues)));
    for (BF16& x : values) x = to_bf16(static_cast<float>(random.next_normal()));
    Memory memory = gpu_.allocate(static_cast<size_t>(elements) * sizeof(BF16));
    for (int64_t at = 0; at < elements; at += kValues) {
      const auto bytes = static_cast<size_t>(std::min(kValues, elements - at)) * sizeof(BF16);
      must(gpu_.stream().copy(memory.as<BF16>() + at, values.data(), bytes));
    }
    gpu_.synchronize();
    return memory;
  }

  // Median of launches back to back.
  double seconds(const std::function<void()>& call) {
    constexpr int kRounds = 7;
    std::vector<double> times;
    int count = 1;
    for (int round = 0; round < kRounds; ++round) {
      must(start_.record(gpu_.stream()));
      for (int i = 0; i < count; ++i) call();
      must(end_.record(gpu_.stream()));
      must(end_.synchronize());
      const double ms = must(end_.milliseconds_since(start_)) / count;
      if (round < 2) {
        count = std::clamp(static_cast<int>(10.0 / std::max(ms, 1e-3)), 1, 400);
      } else {
        times.push_back(ms * 1e-3);
      }
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void measure_product() {
    constexpr int64_t kSize = 8192;
    const Memory a = random(kSize * kSize);
    const Memory b = random(kSize * kSize);
    const Memory c = gpu_.allocate(static_cast<size_t>(kSize * kSize) * sizeof(BF16));
    GemmForward g;
    g.b.data = b.data();
    g.a = a.as<BF16>();
    g.lda = kSize;
    g.m = kSize;
    g.n = kSize;
    g.k = kSize;
    g.c = {c.data(), kSize, true, false};
    product_ = 2.0 * kSize * kSize * kSize / seconds([&] { gemm_forward(g, gpu_.handle()); });
    std::printf("own 8192^3 product %.0f TFLOP/s\n", product_ * 1e-12);
  }

  void report(const std::string& what, double seconds, double operations) const {
    const double rate = operations / seconds;
    std::printf("%-52s %9.1f us %7.1f TFLOP/s %5.1f %%\n", what.c_str(), seconds * 1e6, rate * 1e-12,
                100.0 * rate / product_);
    std::fflush(stdout);
  }

 private:
  const Gpu& gpu_;
  Event start_, end_;
  uint64_t seed_ = 0;
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
  const Memory q = b.random(queries * q_width);
  const Memory k = b.random(all * k_width);
  const Memory v = b.random(all * k_width);
  const Memory out = b.gpu().allocate(static_cast<size_t>(queries * q_width) * 2);
  const Memory lse = b.gpu().allocate(static_cast<size_t>(queries * heads) * 4);
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
  const Memory device_pages = b.gpu().upload(pages);
  const Memory device_tiles = b.gpu().upload(tiles);
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
  const auto forward = [&] { attention_forward(a, b.gpu().handle()); };
  a.portable = true;
  b.report("portable forward " + shape, b.seconds(forward), operations);
  a.portable = false;
  b.report("forward " + shape, b.seconds(forward), operations);
  if (rows != length) return;

  const Memory dout = b.random(queries * q_width);
  const Memory delta = b.gpu().allocate(lse.bytes());
  const Memory dq = b.gpu().allocate(static_cast<size_t>(queries * q_width) * 4);
  const Memory dk = b.gpu().allocate(static_cast<size_t>(all * k_width) * 4);
  const Memory dv = b.gpu().allocate(dk.bytes());
  const Memory device_backward = b.gpu().upload(backward_tiles);
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
  const auto backward = [&] { attention_backward(g, b.gpu().handle()); };
  g.portable = true;
  b.report("portable backward " + shape, b.seconds(backward), 2.5 * operations);
  g.portable = false;
  b.report("backward " + shape, b.seconds(backward), 2.5 * operations);
}

}  // namespace

int main() {
  const auto gpu = Gpu::open();
  if (!gpu) return 0;
  Bench b(*gpu);
  b.measure_product();
  attend(b, 32, 4, 128, 4, 2048, 2048);
  attend(b, 32, 4, 128, 1, 8192, 8192);
  attend(b, 32, 4, 128, 16, 512, 512);
  attend(b, 32, 4, 128, 1, 8192, 512);
  attend(b, 9, 3, 64, 16, 512, 512);
  attend(b, 16, 16, 64, 4, 2048, 2048);
  return 0;
}
