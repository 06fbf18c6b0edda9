// Quantizers on the device: time, bytes moved and their share of the bandwidth of a copy, measured in the
// same run. Inputs rotate over more memory than the cache holds. `bench_gpu_formats [megabytes of input...]`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"

using namespace accord;
using namespace accord::formats;
using gpu_test::Gpu;
using gpu_test::must;

namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 20;  // several times the L2
constexpr int kRounds = 7;

// Median seconds of one launch; `launch(i)` works on buffer set i of `sets`.
double seconds_of(const Gpu& gpu, int sets, const std::function<void(int)>& launch) {
  const int launches = std::max(sets, 16);
  for (int i = 0; i < sets; ++i) launch(i);
  std::vector<double> times;
  Event start = must(Event::create(gpu.device()));
  Event end = must(Event::create(gpu.device()));
  for (int round = 0; round < kRounds; ++round) {
    must(start.record(gpu.stream()));
    for (int i = 0; i < launches; ++i) launch(i % sets);
    must(end.record(gpu.stream()));
    must(end.synchronize());
    times.push_back(must(end.milliseconds_since(start)) / 1e3 / launches);
  }
  std::sort(times.begin(), times.end());
  return times[kRounds / 2];
}

struct Set {
  Memory x;
  Memory row_q;
  Memory row_scale;
  Memory col_q;
  Memory col_scale;
  Memory amax;
  Memory whole;  // [1], the largest of all
};

// N(0,1)-like values: sums of uniform bytes, from a fixed generator.
template <class T>
std::vector<T> ordinary(int64_t count) {
  std::vector<T> x(static_cast<size_t>(count));
  uint64_t state = 88172645463325252u;
  for (T& value : x) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>((state >> (16 * i)) & 0xffff) - 32768;
    value = from_float<T>(static_cast<float>(sum) / 37837.0F);
  }
  return x;
}

template <class T>
void bench(const Gpu& gpu, int64_t megabytes, int64_t cols) {
  const int64_t bytes = megabytes << 20;
  const int64_t rows = bytes / static_cast<int64_t>(sizeof(T)) / cols / 32 * 32;
  const int64_t elements = rows * cols;
  const auto x_bytes = static_cast<size_t>(elements) * sizeof(T);
  const int sets = static_cast<int>(std::max<int64_t>(2, kCacheBytes / bytes));
  const std::vector<T> values = ordinary<T>(elements);
  std::vector<Set> all;
  const auto count = static_cast<size_t>(elements);
  for (int i = 0; i < sets; ++i) {
    all.push_back({gpu.upload(values), gpu.allocate(count), gpu.allocate(count / 16), gpu.allocate(count),
                   gpu.allocate(count / 16), gpu.allocate(static_cast<size_t>(rows) * sizeof(float)),
                   gpu.allocate(sizeof(float))});
  }
  const Memory scratch = gpu.allocate(cuda::kAmaxScratch * sizeof(float));
  for (const Set& set : all) {
    cuda::amax({set.x.data(), DtypeOf<T>::value, rows, cols, cols}, set.whole.as<float>(), false,
               scratch.as<float>(), gpu.handle());
  }
  const Memory copy_to = gpu.allocate(x_bytes);
  const double copy =
      2.0 * static_cast<double>(x_bytes) / seconds_of(gpu, sets, [&](int i) {
        must(gpu.stream().copy(copy_to.data(), all[static_cast<size_t>(i)].x.data(), x_bytes));
      });
  std::printf("%s [%lld, %lld] %lld MB; copy %.2f TB/s\n", sizeof(T) == 2 ? "bf16" : "fp32",
              static_cast<long long>(rows), static_cast<long long>(cols), static_cast<long long>(megabytes),
              copy / 1e12);
  const auto report = [&](const std::string& name, double bytes_per_element,
                          const std::function<void(const Set&, MatrixView)>& run) {
    const double seconds = seconds_of(gpu, sets, [&](int i) {
      const Set& set = all[static_cast<size_t>(i)];
      run(set, MatrixView{set.x.data(), DtypeOf<T>::value, rows, cols, cols});
    });
    const double rate = bytes_per_element * static_cast<double>(elements) / seconds;
    std::printf("  %-24s %8.1f us  %5.2f TB/s  %5.1f %% of copy\n", name.c_str(), seconds * 1e6, rate / 1e12,
                100.0 * rate / copy);
  };
  const double in = sizeof(T);
  for (const Element element : {Element::kE4M3, Element::kE5M2}) {
    const std::string suffix = element == Element::kE4M3 ? " e4m3" : " e5m2";
    report("mxfp8 rows" + suffix, in + 33.0 / 32, [&](const Set& s, MatrixView x) {
      cuda::quantize_mxfp8_rows(x, s.row_q.as<uint8_t>(), s.row_scale.as<uint8_t>(), element, gpu.handle());
    });
    report("mxfp8 cols" + suffix, in + 33.0 / 32, [&](const Set& s, MatrixView x) {
      cuda::quantize_mxfp8_cols(x, s.col_q.as<uint8_t>(), s.col_scale.as<uint8_t>(), element, gpu.handle());
    });
    report("mxfp8 both" + suffix, in + 33.0 / 16, [&](const Set& s, MatrixView x) {
      cuda::quantize_mxfp8_both(x, s.row_q.as<uint8_t>(), s.row_scale.as<uint8_t>(), s.col_q.as<uint8_t>(),
                                s.col_scale.as<uint8_t>(), element, gpu.handle());
    });
  }
  const auto nvfp4 = [&](const std::string& name, double bytes_per_element, const Nvfp4Options& options,
                         bool shared) {
    report("nvfp4 " + name, bytes_per_element, [&, shared](const Set& s, MatrixView x) {
      cuda::quantize_nvfp4(x, options, {s.row_q.as<uint8_t>(), s.row_scale.as<uint8_t>(), s.amax.as<float>()},
                           shared ? s.whole.as<float>() : nullptr, scratch.as<float>(), gpu.handle());
    });
  };
  constexpr double kOut = 9.0 / 16;
  const Nvfp4Options token{Nvfp4Scope::kToken, Nvfp4Layout::k1x16, FourOverSix::kNone, 448};
  Nvfp4Options tensor;
  Nvfp4Options square;
  square.layout = Nvfp4Layout::k16x16;
  nvfp4("token", in + kOut, token, false);
  nvfp4("tensor", 2 * in + kOut, tensor, false);  // two passes
  nvfp4("tensor given A", in + kOut, tensor, true);
  nvfp4("16x16", 2 * in + kOut, square, false);
  nvfp4("16x16 given A", in + kOut, square, true);
  for (Nvfp4Options options : {token, tensor, square}) {
    options.four_over_six = FourOverSix::kMse;
    const bool per_token = options.scope == Nvfp4Scope::kToken;
    nvfp4(per_token                               ? "token 4/6"
          : options.layout == Nvfp4Layout::k16x16 ? "16x16 4/6 given A"
                                                  : "tensor 4/6 given A",
          in + kOut, options, !per_token);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto gpu = Gpu::open();
  if (!gpu) {
    return 0;
  }
  std::printf("%s\n", gpu->name().c_str());
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.empty()) sizes = {64, 256, 1024};
  for (const int64_t size : sizes) {
    bench<BF16>(*gpu, size, 2048);
    bench<float>(*gpu, size, 2048);
  }
  bench<BF16>(*gpu, 256, 576);
  bench<BF16>(*gpu, 256, 4096);
  return 0;
}
