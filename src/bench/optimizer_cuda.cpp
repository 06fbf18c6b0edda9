// An optimizer step over the parameters of one layer (src/trainer's passes), with the export to each format.
#include <algorithm>

#include "bench/operations.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

struct Tensor {
  int64_t rows = 0;
  int64_t cols = 0;
};

std::vector<Tensor> tensors_of(const ModelConfig& config) {
  std::vector<Tensor> out;
  for (const ParamSpec& spec : parameter_specs(config)) {
    if (spec.layer == 0 && spec.shape.size() == 2) out.push_back({spec.shape[0], spec.shape[1]});
  }
  return out;
}

kernels::AdamwFactors factors() {
  kernels::AdamwFactors f;
  f.beta1 = 0.9F;
  f.one_minus_beta1 = 0.1F;
  f.beta2 = 0.999F;
  f.one_minus_beta2 = 0.001F;
  f.step = 1e-6F;
  f.inv_sqrt_correction2 = 1.0F;
  f.eps = 1e-8F;
  return f;
}

}  // namespace

void optimizer_operations(const Run& run, Table& table) {
  DeviceBench& bench = run.bench;
  const WeightFormat format = kFormats[run.format];
  const std::vector<Tensor> tensors = tensors_of(run.config);
  int64_t count = 0;
  int64_t largest = 0;
  for (const Tensor& t : tensors) {
    count += t.rows * t.cols;
    largest = std::max(largest, t.rows * t.cols);
  }
  const auto report = [&](const std::string& op, const std::string& name, const Work& work,
                          const std::function<void()>& launch) {
    if (table.wants(op)) table.add(run.format, op, name, work, bench.seconds(launch));
  };
  const auto each = [&](const auto& launch) {
    return [&tensors, launch] {
      for (const Tensor& t : tensors) launch(t);
    };
  };
  // Second moments are positive: bytes 0x38 are 4e-5.
  constexpr uint8_t kSmall = 0x38;
  constexpr int64_t kMoments = 8;
  const Memory moments =
      must(Memory::allocate(bench.gpu().device(), static_cast<size_t>(kMoments * largest) * sizeof(float)));
  must(bench.gpu().stream().fill(moments.data(), kSmall, moments.bytes()));
  const Memory scratch =
      must(Memory::allocate(bench.gpu().device(), formats::cuda::kAmaxScratch * sizeof(float)));
  const Memory amax = bench.gpu().upload(std::vector<float>{1.0F});

  const int64_t summed = std::min(count, run.bench.num_elements());
  report("adamw", "sum of squares", {4 * real(summed), 0, 0}, [&] {
    cuda::sum_of_squares(bench.f32(summed), summed, bench.out<double>(1),
                         bench.out<double>(cuda::squares_scratch(summed)), bench.stream());
  });
  report("adamw", "first not finite", {4 * real(summed), 0, 0},
         [&] { cuda::first_non_finite(bench.f32(summed), summed, bench.out<int64_t>(1), bench.stream()); });
  int64_t turn = 0;
  const double exported = format == WeightFormat::kNVFP4 ? 0.0 : weight_bytes(format, real(count));
  report("adamw", "AdamW with export", {16 * real(count), 12 * real(count) + exported, 0},
         each([&](const Tensor& t) {
           const int64_t size = t.rows * t.cols;
           cuda::AdamwExport to;
           to.rows = t.rows;
           to.cols = t.cols;
           if (format == WeightFormat::kBF16) to.bf16 = bench.out<BF16>(size);
           if (format == WeightFormat::kMXFP8) {
             to.mxfp8 = bench.out<uint8_t>(size);
             to.mxfp8_scales = bench.out<uint8_t>(size / 32);
           }
           to.counts = bench.out<ExportCounts>(1);
           cuda::adamw_export(bench.f32(size), bench.f32(size), bench.f32(size),
                              moments.as<float>() + turn++ % kMoments * largest, to, factors(),
                              bench.stream());
         }));
  if (format == WeightFormat::kNVFP4) {
    report("formats", "NVFP4 of the masters", {4 * real(count), weight_bytes(format, real(count)), 0},
           each([&](const Tensor& t) {
             const int64_t size = t.rows * t.cols;
             formats::cuda::quantize_nvfp4(
                 matrix_view(bench.f32(size), t.rows, t.cols), {},
                 {bench.out<uint8_t>(size / 2), bench.out<uint8_t>(size / formats::kNvfp4Block),
                  bench.out<float>(1)},
                 amax.as<float>(), scratch.as<float>(), bench.stream());
           }));
  } else {
    table.add_none(run.format, "NVFP4 of the masters");
  }
  report("linear", "masters to BF16, for the backward", {4 * real(count), 2 * real(count), 0},
         each([&](const Tensor& t) {
           const int64_t size = t.rows * t.cols;
           cuda::round_to_bf16(bench.f32(size), size, bench.out<BF16>(size), bench.stream());
         }));
}

}  // namespace accord::bench
