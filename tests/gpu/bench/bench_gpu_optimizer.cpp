// The optimizer's pass and the backward's operands on the device: time, bytes moved and their share of the
// bandwidth of a copy, measured in the same run. `bench_gpu_optimizer [millions of elements]`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"

using namespace accord;
using gpu_test::Gpu;
using gpu_test::must;
namespace cuda = accord::kernels::cuda;

namespace {

constexpr int kRounds = 7;
constexpr int kLaunches = 8;
constexpr int64_t kCols = 1536;
constexpr int32_t kGroups = 64;

// Median seconds of one launch.
double seconds_of(const Gpu& gpu, const std::function<void()>& launch) {
  launch();
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

void bench(const Gpu& gpu, int64_t elements) {
  const int64_t rows = elements / kCols;
  const int64_t count = rows * kCols;
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& x : values) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8) * 0x1p-24F;
  }
  const Memory master = gpu.upload(values);
  const Memory gradient = gpu.upload(values);
  const Memory exp_avg = gpu.upload(values);
  const Memory exp_avg_sq = gpu.upload(values);
  const Memory out = gpu.allocate(bytes);
  const Memory scales = gpu.allocate(static_cast<size_t>(count / 32));
  const Memory result = gpu.upload(std::vector<double>(4));
  const Memory scratch = gpu.allocate(static_cast<size_t>(cuda::squares_scratch(count)) * sizeof(double));
  std::vector<int32_t> offsets;
  for (int64_t g = 0; g <= kGroups; ++g) offsets.push_back(static_cast<int32_t>(rows * g / kGroups));
  const Memory device_offsets = gpu.upload(offsets);

  const double copy = 2.0 * static_cast<double>(bytes) /
                      seconds_of(gpu, [&] { must(gpu.stream().copy(out.data(), master.data(), bytes)); });
  std::printf("[%lld, %lld]; copy %.2f TB/s\n", static_cast<long long>(rows), static_cast<long long>(kCols),
              copy / 1e12);
  const auto report = [&](const std::string& name, double bytes_per_element,
                          const std::function<void()>& run) {
    const double seconds = seconds_of(gpu, run);
    const double rate = bytes_per_element * static_cast<double>(count) / seconds;
    std::printf("  %-32s %8.1f us  %5.2f TB/s  %5.1f %% of copy\n", name.c_str(), seconds * 1e6, rate / 1e12,
                100.0 * rate / copy);
  };

  kernels::AdamwFactors factors;
  factors.beta1 = 0.9F;
  factors.one_minus_beta1 = 0.1F;
  factors.beta2 = 0.95F;
  factors.one_minus_beta2 = 0.05F;
  factors.step = 1e-6F;
  factors.inv_sqrt_correction2 = 1.0F;
  factors.eps = 1e-8F;
  constexpr double kUpdate = 7 * sizeof(float);
  report("adamw", kUpdate, [&] {
    cuda::adamw(master.as<float>(), gradient.as<float>(), exp_avg.as<float>(), exp_avg_sq.as<float>(), count,
                factors, gpu.handle());
  });
  const auto exported = [&](const std::string& name, double more, const cuda::AdamwExport& to) {
    report("adamw_export " + name, kUpdate + more, [&] {
      cuda::adamw_export(master.as<float>(), gradient.as<float>(), exp_avg.as<float>(),
                         exp_avg_sq.as<float>(), to, factors, gpu.handle());
    });
  };
  cuda::AdamwExport to;
  to.rows = rows;
  to.cols = kCols;
  to.counts = result.as<ExportCounts>();
  exported("counts", 0.0, to);
  to.bf16 = out.as<BF16>();
  exported("counts, bf16", 2.0, to);
  to.bf16 = nullptr;
  to.mxfp8 = out.as<uint8_t>();
  to.mxfp8_scales = scales.as<uint8_t>();
  exported("counts, mxfp8", 33.0 / 32, to);

  report("sum_of_squares", 4.0, [&] {
    cuda::sum_of_squares(gradient.as<float>(), count, result.as<double>(), scratch.as<double>(),
                         gpu.handle());
  });
  report("first_non_finite", 4.0,
         [&] { cuda::first_non_finite(gradient.as<float>(), count, result.as<int64_t>(), gpu.handle()); });
  report("round_to_bf16", 6.0,
         [&] { cuda::round_to_bf16(master.as<float>(), count, out.as<BF16>(), gpu.handle()); });
  for (const int32_t groups : {0, kGroups}) {
    const std::string suffix = groups == 0 ? "" : ", 64 groups";
    report("mxfp8_columns fp32" + suffix, 6.0, [&] {
      cuda::mxfp8_columns({master.data(), Dtype::kF32, rows, kCols, kCols}, device_offsets.as<int32_t>(),
                          groups, formats::Element::kE4M3, out.as<BF16>(), gpu.handle());
    });
    report("mxfp8_columns bf16" + suffix, 4.0, [&] {
      cuda::mxfp8_columns({master.data(), Dtype::kBF16, rows, kCols, kCols}, device_offsets.as<int32_t>(),
                          groups, formats::Element::kE4M3, out.as<BF16>(), gpu.handle());
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto gpu = Gpu::open();
  if (!gpu) {
    return 0;
  }
  std::printf("%s\n", gpu->name().c_str());
  bench(*gpu, int64_t{argc > 1 ? std::atoll(argv[1]) : 135} * 1000 * 1000);
  return 0;
}
