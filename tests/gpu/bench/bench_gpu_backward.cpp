// Backward kernels of rows on the device: time, bytes that must move and their share of the bandwidth of a
// copy, measured in the same run, at the shapes of SmolLM2-135M and of a layer of Qwen3-30B-A3B.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "kernels/embedding/embedding_backward_cuda.hpp"
#include "kernels/logprob/logprob_backward_cuda.hpp"
#include "kernels/moe/moe_backward_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_backward_cuda.hpp"
#include "kernels/rope/rope_backward_cuda.hpp"
#include "kernels/swiglu/swiglu_backward_cuda.hpp"

using namespace accord;
using namespace accord::kernels;
using gpu_test::Gpu;
using gpu_test::must;

namespace {

constexpr int kRounds = 7;
constexpr int kLaunches = 16;

class Bench {
 public:
  explicit Bench(const Gpu& gpu) : gpu_(gpu) {
    constexpr size_t kBytes = size_t{1} << 29;
    const Memory from = ordinary<float>(kBytes / 4, 1.0F);
    const Memory to = gpu.allocate(kBytes);
    const auto copy = [&] { must(gpu.stream().copy(to.data(), from.data(), kBytes)); };
    copy_rate_ = 2.0 * kBytes / seconds_of(copy);
    std::printf("%s; copy %.2f TB/s; shares are of that\n", gpu.name().c_str(), copy_rate_ / 1e12);
  }

  void report(const std::string& name, double bytes, const std::function<void()>& launch) const {
    const double seconds = seconds_of(launch);
    std::printf("  %-28s %9.1f us  %6.2f TB/s  %5.1f %%\n", name.c_str(), seconds * 1e6,
                bytes / seconds / 1e12, 100.0 * bytes / seconds / copy_rate_);
  }

  template <class T>
  Memory ordinary(int64_t count, float scale) const {
    std::vector<T> x(static_cast<size_t>(count));
    uint64_t state = 88172645463325252u;
    for (T& value : x) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      value = from_float<T>(scale * (static_cast<float>(state >> 40) * 0x1p-23F - 1.0F));
    }
    return gpu_.upload(x);
  }
  template <class T>
  Memory room(int64_t count) const {
    return gpu_.allocate(static_cast<size_t>(count) * sizeof(T));
  }

 private:
  double seconds_of(const std::function<void()>& launch) const {
    for (int i = 0; i < 3; ++i) launch();
    std::vector<double> times;
    Event start = must(Event::create(gpu_.device()));
    Event end = must(Event::create(gpu_.device()));
    for (int round = 0; round < kRounds; ++round) {
      must(start.record(gpu_.stream()));
      for (int i = 0; i < kLaunches; ++i) launch();
      must(end.record(gpu_.stream()));
      must(end.synchronize());
      times.push_back(must(end.milliseconds_since(start)) / 1e3 / kLaunches);
    }
    std::sort(times.begin(), times.end());
    return times[kRounds / 2];
  }

  const Gpu& gpu_;
  double copy_rate_ = 0.0;
};

template <class T>
MatrixView view_of(const Memory& memory, int64_t rows, int64_t cols) {
  return {memory.data(), DtypeOf<T>::value, rows, cols, cols};
}

struct Shapes {
  const char* name;
  int64_t rows;
  int64_t hidden;
  int64_t width;  // of the MLP, or of one expert
  int64_t mlp_rows;
  int64_t heads;
  int64_t head_dim;
  int64_t vocab;
};

void bench_rows(const Gpu& gpu, const Bench& bench, const Shapes& s) {
  std::printf("%s: %lld rows\n", s.name, static_cast<long long>(s.rows));
  const StreamHandle stream = gpu.handle();
  {
    const int64_t count = s.rows * s.hidden;
    const auto n = static_cast<double>(count);
    const Memory x = bench.ordinary<BF16>(count, 2.0F);
    const Memory dy = bench.ordinary<float>(count, 1.0F);
    const Memory dx = bench.ordinary<float>(count, 1.0F);
    const Memory inv = bench.ordinary<float>(s.rows, 1.0F);
    const Memory weight = bench.ordinary<BF16>(s.hidden, 1.0F);
    const Memory dweight = bench.ordinary<float>(s.hidden, 1.0F);
    const Memory scratch = bench.room<float>(cuda::rmsnorm_backward_scratch(s.rows, s.hidden));
    const auto norm = [&](MatrixView out, bool accumulate) {
      cuda::rmsnorm_backward(view_of<BF16>(x, s.rows, s.hidden), inv.as<float>(), weight.as<BF16>(),
                             dy.as<float>(), out, accumulate, dweight.as<float>(), scratch.as<float>(),
                             stream);
    };
    const MatrixView as_float = view_of<float>(dx, s.rows, s.hidden);
    bench.report("rmsnorm", 10 * n, [&] { norm(as_float, false); });
    bench.report("rmsnorm, accumulated", 14 * n, [&] { norm(as_float, true); });
    bench.report("rmsnorm to bf16", 8 * n, [&] { norm(view_of<BF16>(dx, s.rows, s.hidden), false); });

    // A frequent token and many rare ones.
    std::vector<int32_t> tokens;
    std::vector<int32_t> offsets{0};
    std::vector<int32_t> rows(static_cast<size_t>(s.rows));
    std::iota(rows.begin(), rows.end(), 0);
    for (int64_t at = s.rows / 25; at <= s.rows; at += 3) {
      tokens.push_back(static_cast<int32_t>((static_cast<int64_t>(tokens.size()) * 7919 + 1) % s.vocab));
      offsets.push_back(static_cast<int32_t>(at));
    }
    const auto different = static_cast<int32_t>(tokens.size());
    const Memory table = bench.room<float>(s.vocab * s.hidden);
    must(gpu.stream().fill(table.data(), 0, table.bytes()));
    const Memory token_memory = gpu.upload(tokens);
    const Memory offset_memory = gpu.upload(offsets);
    const Memory row_memory = gpu.upload(rows);
    const cuda::TokenRows batch{token_memory.as<int32_t>(), offset_memory.as<int32_t>(),
                                row_memory.as<int32_t>(), different};
    bench.report("embedding", 4 * n + 8.0 * different * static_cast<double>(s.hidden), [&] {
      cuda::embedding_backward(batch, dy.as<float>(), s.hidden, table.as<float>(), stream);
    });
  }
  {
    const int64_t width = s.heads * s.head_dim;
    const auto n = static_cast<double>(s.rows * width);
    constexpr int64_t kPositions = 8192;
    const Memory dy = bench.ordinary<float>(s.rows * width, 1.0F);
    const Memory dx = bench.room<BF16>(s.rows * width);
    const Memory angles = bench.ordinary<float>(kPositions * s.head_dim / 2, 1.0F);
    std::vector<int32_t> positions;
    for (int64_t r = 0; r < s.rows; ++r) positions.push_back(static_cast<int32_t>(r % kPositions));
    const Memory position_memory = gpu.upload(positions);
    const cuda::RopeTableView table{angles.as<float>(), angles.as<float>(), s.head_dim / 2};
    bench.report("rope to bf16", 6 * n, [&] {
      cuda::rope_backward(dy.as<float>(), s.rows, width, position_memory.as<int32_t>(), table,
                          view_of<BF16>(dx, s.rows, width), stream);
    });
    bench.report("rope in place", 8 * n, [&] {
      cuda::rope_backward(dy.as<float>(), s.rows, width, position_memory.as<int32_t>(), table,
                          view_of<float>(dy, s.rows, width), stream);
    });
  }
  {
    const int64_t count = s.mlp_rows * s.width;
    const Memory gate = bench.ordinary<BF16>(count, 2.0F);
    const Memory up = bench.ordinary<BF16>(count, 2.0F);
    const Memory dact = bench.ordinary<float>(count, 1.0F);
    const Memory dgate = bench.room<BF16>(count);
    const Memory dup = bench.room<BF16>(count);
    bench.report("swiglu", 12.0 * static_cast<double>(count), [&] {
      cuda::swiglu_backward(view_of<BF16>(gate, s.mlp_rows, s.width), view_of<BF16>(up, s.mlp_rows, s.width),
                            dact.as<float>(), dgate.as<BF16>(), dup.as<BF16>(), stream);
    });
  }
}

void bench_experts(const Gpu& gpu, const Bench& bench, int64_t tokens, int64_t hidden, int64_t experts,
                   int64_t k) {
  const int64_t rows = tokens * k;
  const StreamHandle stream = gpu.handle();
  // Every token's slots lie in k experts' parts of the sorted rows.
  std::vector<int32_t> sorted_tokens(static_cast<size_t>(rows));
  std::vector<int32_t> sorted_slots(static_cast<size_t>(rows));
  std::vector<int32_t> slot_rows;
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t slot = 0; slot < k; ++slot) {
      const int64_t row = slot * tokens + t;
      sorted_tokens[static_cast<size_t>(row)] = static_cast<int32_t>(t);
      sorted_slots[static_cast<size_t>(row)] = static_cast<int32_t>(slot);
      slot_rows.push_back(static_cast<int32_t>(row));
      ids.push_back(static_cast<int32_t>((t + slot * (experts / k)) % experts));
    }
  }
  const Memory token_memory = gpu.upload(sorted_tokens);
  const Memory slot_memory = gpu.upload(sorted_slots);
  const Memory row_memory = gpu.upload(slot_rows);
  const Memory id_memory = gpu.upload(ids);
  const Memory weights = bench.ordinary<float>(rows, 1.0F);
  const Memory dweights = bench.room<float>(rows);
  const Memory dy = bench.ordinary<float>(tokens * hidden, 1.0F);
  const auto row_values = static_cast<double>(rows * hidden);
  const auto token_values = static_cast<double>(tokens * hidden);
  {
    const Memory down = bench.ordinary<BF16>(rows * hidden, 1.0F);
    const Memory ddown = bench.room<BF16>(rows * hidden);
    bench.report("moe_combine", 4 * token_values + 4 * row_values, [&] {
      cuda::moe_combine_backward(dy.as<float>(), hidden, view_of<BF16>(down, rows, hidden),
                                 token_memory.as<int32_t>(), slot_memory.as<int32_t>(), weights.as<float>(),
                                 k, ddown.as<BF16>(), dweights.as<float>(), stream);
    });
  }
  {
    const Memory dx_rows = bench.ordinary<float>(rows * hidden, 1.0F);
    bench.report("moe_dispatch", 8 * token_values + 4 * row_values, [&] {
      cuda::moe_dispatch_backward(dx_rows.as<float>(), hidden, row_memory.as<int32_t>(), k, tokens,
                                  dy.as<float>(), stream);
    });
  }
  const Memory scores = bench.ordinary<float>(tokens * experts, 1.0F);
  const Memory dlogits = bench.room<BF16>(tokens * experts);
  RouterRule rule;
  rule.experts = experts;
  rule.k = k;
  bench.report("router", static_cast<double>(tokens) * static_cast<double>(6 * experts + 8 * k), [&] {
    cuda::router_backward(rule, scores.as<float>(), id_memory.as<int32_t>(), dweights.as<float>(), tokens,
                          dlogits.as<BF16>(), stream);
  });
}

void bench_vocab(const Gpu& gpu, const Bench& bench, int64_t rows, int64_t vocab) {
  std::printf("vocabulary [%lld, %lld]\n", static_cast<long long>(rows), static_cast<long long>(vocab));
  const Memory logits = bench.ordinary<float>(rows * vocab, 8.0F);
  const Memory temperatures = gpu.upload(std::vector<float>(static_cast<size_t>(rows), 1.0F));
  const Memory tokens = gpu.upload(std::vector<int32_t>(static_cast<size_t>(rows), 1));
  const Memory values = bench.ordinary<float>(rows, 1.0F);
  const Memory dlogits = bench.room<BF16>(rows * vocab);
  bench.report("logprob", 6.0 * static_cast<double>(rows * vocab), [&] {
    cuda::logprob_backward(view_of<float>(logits, rows, vocab), temperatures.as<float>(),
                           tokens.as<int32_t>(), values.as<float>(), values.as<float>(), values.as<float>(),
                           dlogits.as<BF16>(), gpu.handle());
  });
}

}  // namespace

int main() {
  const auto gpu = Gpu::open();
  if (!gpu) {
    return 0;
  }
  const Bench bench(*gpu);
  constexpr int64_t kRows = 8192;
  bench_rows(*gpu, bench, {"SmolLM2-135M", kRows, 576, 1536, kRows, 9, 64, 49152});
  bench_rows(*gpu, bench, {"Qwen3-30B-A3B", kRows, 2048, 768, kRows * 8, 32, 128, 151936});
  bench_experts(*gpu, bench, kRows, 2048, 128, 8);
  bench_vocab(*gpu, bench, 512, 49152);
  bench_vocab(*gpu, bench, 512, 151936);
  return 0;
}
