// Row-local kernels on the device: time, bytes moved and their share of the bandwidth of a copy, measured in
// the same run, at the shapes of SmolLM2-135M and of a layer of Qwen3-30B-A3B.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/rope/rope_cuda.hpp"
#include "kernels/router/router_cuda.hpp"
#include "kernels/sampler/sampler_cuda.hpp"
#include "kernels/swiglu/swiglu_cuda.hpp"

using namespace accord;
using namespace accord::kernels;
using gpu_test::Gpu;
using gpu_test::must;

namespace {

constexpr int kRounds = 7;
constexpr int kLaunches = 16;

double seconds_of(const Gpu& gpu, const std::function<void()>& launch) {
  for (int i = 0; i < 3; ++i) launch();
  std::vector<double> times;
  Event start = must(Event::create(gpu.device()));
  Event end = must(Event::create(gpu.device()));
  for (int round = 0; round < kRounds; ++round) {
    must(start.record(gpu.stream()));
    for (int i = 0; i < kLaunches; ++i) launch();
    must(end.record(gpu.stream()));
    must(end.synchronize());
    times.push_back(must(end.milliseconds_since(start)) / 1e3 / kLaunches);
  }
  std::sort(times.begin(), times.end());
  return times[kRounds / 2];
}

template <class T>
Memory ordinary(const Gpu& gpu, int64_t count, float scale) {
  std::vector<T> x(static_cast<size_t>(count));
  uint64_t state = 88172645463325252u;
  for (T& value : x) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = from_float<T>(scale * (static_cast<float>(state >> 40) * 0x1p-23F - 1.0F));
  }
  return gpu.upload(x);
}

double copy_rate = 0.0;

void report(const Gpu& gpu, const std::string& name, double bytes, const std::function<void()>& launch) {
  const double seconds = seconds_of(gpu, launch);
  std::printf("  %-34s %9.1f us  %6.2f TB/s  %5.1f %%\n", name.c_str(), seconds * 1e6, bytes / seconds / 1e12,
              100.0 * bytes / seconds / copy_rate);
}

void bench_rows(const Gpu& gpu, int64_t rows, int64_t cols) {
  std::printf("rows [%lld, %lld] bf16\n", static_cast<long long>(rows), static_cast<long long>(cols));
  const int64_t count = rows * cols;
  const Memory x = ordinary<BF16>(gpu, count, 2.0F);
  const Memory up = ordinary<BF16>(gpu, count, 2.0F);
  const Memory weight = ordinary<BF16>(gpu, cols, 1.0F);
  const Memory y = gpu.allocate(static_cast<size_t>(count) * 2);
  const Memory q = gpu.allocate(static_cast<size_t>(count));
  const Memory scale = gpu.allocate(static_cast<size_t>(count) / 16);
  const Memory amax = gpu.allocate(static_cast<size_t>(rows) * 4);
  const auto view = [&](const Memory& m) { return MatrixView{m.data(), Dtype::kBF16, rows, cols, cols}; };
  const auto n = static_cast<double>(count);
  const formats::Nvfp4Output out{q.as<uint8_t>(), scale.as<uint8_t>(), amax.as<float>()};
  const StreamHandle s = gpu.handle();
  report(gpu, "add_rows", 6 * n, [&] { cuda::add_rows(view(x), view(up), view(y), s); });
  report(gpu, "rms_norm", 4 * n,
         [&] { cuda::rms_norm(view(x), weight.as<BF16>(), 1e-6F, view(y), nullptr, s); });
  report(gpu, "rms_norm + mxfp8", (2 + 33.0 / 32) * n, [&] {
    cuda::rms_norm_mxfp8(view(x), weight.as<BF16>(), 1e-6F, {}, nullptr, q.as<uint8_t>(), scale.as<uint8_t>(),
                         s);
  });
  report(gpu, "rms_norm + nvfp4", (2 + 9.0 / 16) * n, [&] {
    cuda::rms_norm_nvfp4(view(x), weight.as<BF16>(), 1e-6F, {}, nullptr, out, FourOverSix::kNone, 448, s);
  });
  report(gpu, "swiglu", 6 * n, [&] { cuda::swiglu(view(x), view(up), view(y), s); });
  report(gpu, "swiglu + mxfp8", (4 + 33.0 / 32) * n,
         [&] { cuda::swiglu_mxfp8(view(x), view(up), {}, q.as<uint8_t>(), scale.as<uint8_t>(), s); });
  report(gpu, "swiglu + nvfp4", (4 + 9.0 / 16) * n,
         [&] { cuda::swiglu_nvfp4(view(x), view(up), {}, out, FourOverSix::kNone, 448, s); });
  constexpr int64_t kHalf = 64;
  if (cols % (2 * kHalf) == 0) {
    const Memory table = ordinary<float>(gpu, 8192 * kHalf, 1.0F);
    std::vector<int32_t> positions;
    for (int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<int32_t>(r % 8192));
    const Memory position_memory = gpu.upload(positions);
    const cuda::RopeTableView rope{table.as<float>(), table.as<float>(), kHalf};
    report(gpu, "rope", 4 * n,
           [&] { cuda::apply_rope(view(x), position_memory.as<int32_t>(), rope, view(y), nullptr, s); });
  }
}

void bench_moe(const Gpu& gpu, int64_t tokens) {
  constexpr int64_t kExperts = 128;
  constexpr int64_t kTopK = 8;
  constexpr int64_t kHidden = 2048;
  std::printf("experts: %lld tokens, 8 of 128, hidden 2048\n", static_cast<long long>(tokens));
  const Memory logits = ordinary<float>(gpu, tokens * kExperts, 2.0F);
  const auto rows = static_cast<size_t>(tokens * kTopK);
  const Memory ids = gpu.allocate(rows * 4);
  const Memory weights = gpu.allocate(rows * 4);
  const Memory offsets = gpu.allocate((kExperts + 1) * 4);
  const Memory sorted_tokens = gpu.allocate(rows * 4);
  const Memory sorted_slots = gpu.allocate(rows * 4);
  const Memory slot_rows = gpu.allocate(rows * 4);
  const Memory x = ordinary<BF16>(gpu, tokens * kHidden, 1.0F);
  const Memory down = ordinary<BF16>(gpu, tokens * kTopK * kHidden, 1.0F);
  const Memory y = gpu.allocate(x.bytes());
  const MatrixView x_view{x.data(), Dtype::kBF16, tokens, kHidden, kHidden};
  const MatrixView y_view{y.data(), Dtype::kBF16, tokens, kHidden, kHidden};
  const MatrixView down_view{down.data(), Dtype::kBF16, tokens * kTopK, kHidden, kHidden};
  const StreamHandle s = gpu.handle();
  const RouterRule rule{RouterScoring::kSoftmax, kExperts, kTopK, 1, 1, true, 1.0F};
  const auto n = static_cast<double>(tokens);
  report(gpu, "route", n * (kExperts * 4 + kTopK * 8), [&] {
    cuda::route(rule, logits.as<float>(), tokens, nullptr, false, nullptr, ids.as<int32_t>(),
                weights.as<float>(), s);
  });
  const Memory sort_memory =
      gpu.allocate(static_cast<size_t>(cuda::sort_scratch(tokens * kTopK, kExperts)) * 4);
  const ExpertOrder order{offsets.as<int32_t>(), sorted_tokens.as<int32_t>(), sorted_slots.as<int32_t>(),
                          slot_rows.as<int32_t>()};
  report(gpu, "sort_by_expert", n * kTopK * 16, [&] {
    cuda::sort_by_expert(ids.as<int32_t>(), tokens * kTopK, kExperts, kTopK, order, sort_memory.as<int32_t>(),
                         s);
  });
  report(gpu, "gather_rows", n * kTopK * kHidden * 2 * 2,
         [&] { cuda::gather_rows(x_view, sorted_tokens.as<int32_t>(), down_view, s); });
  report(gpu, "combine_experts", n * kHidden * 2 * (kTopK + 2), [&] {
    cuda::combine_experts(x_view, down_view, weights.as<float>(), slot_rows.as<int32_t>(), kTopK, y_view, s);
  });
}

void bench_vocab(const Gpu& gpu, int64_t rows, int64_t vocab) {
  std::printf("vocabulary [%lld, %lld] fp32\n", static_cast<long long>(rows), static_cast<long long>(vocab));
  const Memory logits = ordinary<float>(gpu, rows * vocab, 8.0F);
  const std::vector<float> temperatures(static_cast<size_t>(rows), 1.0F);
  const std::vector<int32_t> tokens(static_cast<size_t>(rows), 1);
  const Memory temperature_memory = gpu.upload(temperatures);
  const Memory token_memory = gpu.upload(tokens);
  const Memory out = gpu.allocate(static_cast<size_t>(rows) * 4);
  const Memory entropies = gpu.allocate(static_cast<size_t>(rows) * 4);
  const MatrixView view{logits.data(), Dtype::kF32, rows, vocab, vocab};
  const auto bytes = static_cast<double>(rows * vocab) * 4;
  report(gpu, "token_logprobs", bytes, [&] {
    cuda::token_logprobs(view, temperature_memory.as<float>(), token_memory.as<int32_t>(), out.as<float>(),
                         nullptr, gpu.handle());
  });
  report(gpu, "token_logprobs + entropy", bytes, [&] {
    cuda::token_logprobs(view, temperature_memory.as<float>(), token_memory.as<int32_t>(), out.as<float>(),
                         entropies.as<float>(), gpu.handle());
  });
  const Memory results = gpu.allocate(static_cast<size_t>(rows) * sizeof(cuda::DrawResult));
  for (const auto& [name, request] :
       {std::pair{"draw", cuda::DrawRequest{1u << 31, 1.0F, 1.0F, -1}},
        std::pair{"draw top-p 0.9 top-k 50", cuda::DrawRequest{1u << 31, 1.0F, 0.9F, 50}}}) {
    const Memory requests = gpu.upload(std::vector<cuda::DrawRequest>(static_cast<size_t>(rows), request));
    report(gpu, name, bytes, [&] {
      cuda::draw_tokens(view, requests.as<cuda::DrawRequest>(), results.as<cuda::DrawResult>(), gpu.handle());
    });
  }
}

}  // namespace

int main() {
  const auto gpu = Gpu::open();
  if (!gpu) {
    return 0;
  }
  constexpr size_t kCopyBytes = size_t{1} << 29;
  const Memory from = ordinary<float>(*gpu, static_cast<int64_t>(kCopyBytes / 4), 1.0F);
  const Memory to = gpu->allocate(kCopyBytes);
  copy_rate = 2.0 * kCopyBytes /
              seconds_of(*gpu, [&] { must(gpu->stream().copy(to.data(), from.data(), kCopyBytes)); });
  std::printf("%s; copy %.2f TB/s; shares are of that\n", gpu->name().c_str(), copy_rate / 1e12);
  bench_rows(*gpu, 65536, 2048);
  bench_rows(*gpu, 131072, 768);
  bench_rows(*gpu, 131072, 576);
  bench_rows(*gpu, 65536, 1536);
  bench_rows(*gpu, 128, 2048);
  bench_moe(*gpu, 32768);
  bench_moe(*gpu, 128);
  bench_vocab(*gpu, 2048, 49152);
  bench_vocab(*gpu, 1024, 151936);
  bench_vocab(*gpu, 32, 151936);
  return 0;
}
