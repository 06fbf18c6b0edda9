// The optimizer's kernels (adamw_cuda.hpp), element by element.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/adamw/adamw_element.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

constexpr int64_t kSquaresBlock = 4096;
constexpr uint32_t kMagnitude = 0x7fffffffU;

uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & kMagnitude; }

void update_all(const Launch& launch, float* master, const float* gradient, float* exp_avg, float* exp_avg_sq,
                int64_t count, const AdamwFactors& factors) {
  float* w = launch.at(master, count);
  const float* g = launch.at(gradient, count);
  float* m = launch.at(exp_avg, count);
  float* v = launch.at(exp_avg_sq, count);
  for (int64_t i = 0; i < count; ++i) adamw_element(w[i], g[i], m[i], v[i], factors);
}

}  // namespace

void adamw(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, int64_t count,
           const AdamwFactors& factors, StreamHandle stream) {
  update_all(Launch("adamw", stream), master, gradient, exp_avg, exp_avg_sq, count, factors);
}

void adamw_export(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq,
                  const AdamwExport& exported, const AdamwFactors& factors, StreamHandle stream) {
  const Launch launch("adamw_export", stream);
  const int64_t count = exported.rows * exported.cols;
  launch.needs(exported.bf16 == nullptr || exported.mxfp8 == nullptr, "one of bf16 and mxfp8");
  launch.needs((exported.mxfp8 == nullptr) == (exported.mxfp8_scales == nullptr), "mxfp8 with its scales");
  if (count == 0) return;
  update_all(launch, master, gradient, exp_avg, exp_avg_sq, count, factors);
  const float* w = launch.at(master, count);
  formats::QuantHealth health;
  if (exported.bf16 != nullptr) {
    emulation::store_row(w, count, launch.at(exported.bf16, count));
  } else if (exported.mxfp8 != nullptr) {
    launch.needs(exported.cols % formats::kMxfp8Block == 0, "mxfp8 of whole blocks of 32");
    std::vector<BF16> rounded(static_cast<size_t>(count));
    emulation::store_row(w, count, rounded.data());
    formats::quantize_mxfp8_rows(
        matrix_view(rounded.data(), exported.rows, exported.cols), launch.at(exported.mxfp8, count),
        launch.at(exported.mxfp8_scales, count / formats::kMxfp8Block), formats::Element::kE4M3, &health);
  }
  if (exported.counts != nullptr) {
    ExportCounts& counts = *launch.at(exported.counts, 1);
    counts.saturated += health.saturated;
    counts.flushed += health.flushed;
    for (int64_t i = 0; i < count; ++i) {
      counts.largest_bits = std::max(counts.largest_bits, magnitude_bits(w[i]));
      counts.flushed += kernels::flushed_by_bf16(magnitude_bits(w[i])) ? 1 : 0;
    }
  }
}

int64_t squares_scratch(int64_t count) { return (count + kSquaresBlock - 1) / kSquaresBlock; }

void sum_of_squares(const float* x, int64_t count, double* result, double* scratch, StreamHandle stream) {
  const Launch launch("sum_of_squares", stream);
  launch.scratch(scratch, squares_scratch(count));
  const float* values = launch.at(x, count);
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kSquaresBlock) {
    double sum = 0.0;
    for (int64_t i = begin; i < std::min(count, begin + kSquaresBlock); ++i) {
      sum += static_cast<double>(values[i]) * values[i];
    }
    total += sum;
  }
  *launch.at(result, 1) = total;
}

void first_non_finite(const float* x, int64_t count, int64_t* first, StreamHandle stream) {
  const Launch launch("first_non_finite", stream);
  const float* values = launch.at(x, count);
  *launch.at(first, 1) =
      std::find_if(values, values + count, [](float v) { return !std::isfinite(v); }) - values;
}

void max_abs_bits(const float* x, int64_t count, uint32_t* bits, StreamHandle stream) {
  const Launch launch("max_abs_bits", stream);
  const float* values = launch.at(x, count);
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(values[i]));
  *launch.at(bits, 1) = largest;
}

void flushed_by_bf16(const float* x, int64_t count, int64_t* count_out, StreamHandle stream) {
  const Launch launch("flushed_by_bf16", stream);
  const float* values = launch.at(x, count);
  *launch.at(count_out, 1) = std::count_if(
      values, values + count, [](float v) { return v != 0.0F && (to_bf16(v).bits & 0x7fffU) == 0; });
}

void sum_in_order(const OrderedParts& parts, float* sum, StreamHandle stream) {
  const Launch launch("sum_in_order", stream);
  launch.needs(parts.num >= 0 && parts.num <= OrderedParts::kMost, "at most OrderedParts::kMost parts");
  int64_t longest = 0;
  const float* data[OrderedParts::kMost];
  for (int p = 0; p < parts.num; ++p) {
    data[p] = launch.at(parts.data[p], parts.count[p]);
    longest = std::max(longest, parts.count[p]);
  }
  sum = launch.at(sum, longest);
  for (int64_t i = 0; i < longest; ++i) {
    float total = 0.0F;
    for (int p = 0; p < parts.num; ++p) {
      if (i < parts.count[p]) total += data[p][i];
    }
    sum[i] = total;
  }
}

}  // namespace accord::kernels::cuda
