#include <algorithm>
#include <vector>

#include "bench/device_bench.hpp"
#include "bench/random_policy.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "weights/quantize.hpp"

namespace accord::bench {
namespace {

constexpr int64_t kStarts = 64;  // places in the random values where a tensor may begin
constexpr int64_t kStartStep = 4096;

}  // namespace

void fill_arena(const RandomPolicy& policy, std::byte* arena, const Gpu& gpu) {
  int64_t largest = 0;
  int64_t longest = 1;
  for (const WeightEntry& e : policy.manifest.entries) {
    const weights::MatrixShape shape = weights::matrix_shape(e);
    largest = std::max(largest, shape.rows * shape.cols);
    if (e.shape.size() == 1) longest = std::max(longest, shape.cols);
  }
  const int64_t values = largest + kStarts * kStartStep;
  const Memory random = gpu.allocate(static_cast<size_t>(values) * sizeof(BF16));
  // Uniform in (-s/2, s/2) has a standard deviation of s / sqrt(12).
  constexpr float kSqrt12 = 3.4641016F;
  fill_random(gpu, random.as<BF16>(), values, kSqrt12 * static_cast<float>(policy.config.initializer_range));
  const Memory ones = gpu.upload(std::vector<BF16>(static_cast<size_t>(longest), to_bf16(1.0F)));
  const Memory scratch = gpu.allocate(formats::cuda::kAmaxScratch * sizeof(float));
  int64_t turn = 0;
  for (const WeightEntry& e : policy.manifest.entries) {
    const weights::MatrixShape shape = weights::matrix_shape(e);
    BF16* const from = random.as<BF16>() + turn++ % kStarts * kStartStep;
    auto* const data = reinterpret_cast<uint8_t*>(arena + e.data_offset);
    auto* const scales = reinterpret_cast<uint8_t*>(arena + e.scale_offset);
    const MatrixView x = matrix_view(from, shape.rows, shape.cols);
    switch (e.format) {
      case WeightFormat::kF32:
        must(gpu.stream().fill(data, 0, static_cast<size_t>(e.data_bytes)));
        break;
      case WeightFormat::kBF16:
        must(gpu.stream().copy(data, e.shape.size() == 1 ? ones.as<BF16>() : from,
                               static_cast<size_t>(e.data_bytes)));
        break;
      case WeightFormat::kMXFP8:
        formats::cuda::quantize_mxfp8_rows(x, data, scales, formats::Element::kE4M3, gpu.handle());
        break;
      case WeightFormat::kNVFP4:
        formats::cuda::quantize_nvfp4(x, weights::nvfp4_weight_options(*policy.plan.find(e.name)),
                                      {data, scales, reinterpret_cast<float*>(arena + e.outer_offset)},
                                      nullptr, scratch.as<float>(), gpu.handle());
        break;
    }
  }
  gpu.synchronize();  // the random values go
}

}  // namespace accord::bench
