// The norm's backward on the device against sums in double, within a bound from the terms' sizes; and the
// same bytes every time.
#include <cmath>

#include "backward_values.hpp"
#include "gpu.hpp"
#include "kernels/rmsnorm/rmsnorm_backward_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::kernels;
using gpu_test::bytes_of;
using gpu_test::close;
using gpu_test::different;
using gpu_test::Gpu;
using gpu_test::kBf16Ulp;
using gpu_test::kUlp;
using gpu_test::normal;
using gpu_test::on_device;

namespace {

struct NormCase {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padding = 0;  // of the rows of x
  bool accumulate = false;
  bool in_place = false;
  bool bf16 = false;
};

struct NormResult {
  std::vector<float> dx;
  std::vector<float> dweight;
};

// What is wrong, in elements.
int64_t norm_differences(const Gpu& gpu, const NormCase& c) {
  const int64_t count = c.rows * c.cols;
  const int64_t stride = c.cols + c.padding;
  std::vector<BF16> x = normal<BF16>(1, c.rows * stride, 2.0F);
  std::vector<float> dy = normal<float>(2, count);
  for (int64_t r = 0; r < c.rows; ++r) {
    const float scale = std::ldexp(1.0F, static_cast<int>(r % 7 - 3) * 8);
    for (int64_t h = 0; h < c.cols; ++h) {
      dy[static_cast<size_t>(r * c.cols + h)] *= scale;
      if (r % 5 == 4) x[static_cast<size_t>(r * stride + h)] = BF16{};
    }
  }
  if (c.rows > 6) dy[static_cast<size_t>(6 * c.cols + c.cols / 2)] = NAN;
  const std::vector<BF16> weight = normal<BF16>(3, c.cols);
  const std::vector<float> before = c.in_place ? dy : normal<float>(4, count);
  const std::vector<float> dweight_before = normal<float>(5, c.cols);
  std::vector<float> inv;
  for (int64_t r = 0; r < c.rows; ++r) {
    double sum = 0.0;
    for (int64_t h = 0; h < c.cols; ++h) {
      sum += std::pow(to_float(x[static_cast<size_t>(r * stride + h)]), 2);
    }
    inv.push_back(static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(c.cols) + 1e-6)));
  }
  const auto run = [&] {
    const Memory x_memory = gpu.upload(x);
    const Memory inv_memory = gpu.upload(inv);
    const Memory weight_memory = gpu.upload(weight);
    const Memory dy_memory = gpu.upload(dy);
    const Memory other = c.bf16 ? gpu.allocate(bytes_of<BF16>(count)) : gpu.upload(before);
    const Memory& dx = c.in_place ? dy_memory : other;
    const Memory dweight = gpu.upload(dweight_before);
    const Memory scratch = gpu.allocate(bytes_of<float>(cuda::rmsnorm_backward_scratch(c.rows, c.cols)));
    cuda::rmsnorm_backward(
        on_device<BF16>(x_memory, c.rows, c.cols, stride), inv_memory.as<float>(), weight_memory.as<BF16>(),
        dy_memory.as<float>(),
        c.bf16 ? on_device<BF16>(dx, c.rows, c.cols) : on_device<float>(dx, c.rows, c.cols), c.accumulate,
        dweight.as<float>(), scratch.as<float>(), gpu.handle());
    NormResult result;
    if (c.bf16) {
      for (const BF16 v : gpu.download<BF16>(dx, static_cast<size_t>(count)))
        result.dx.push_back(to_float(v));
    } else {
      result.dx = gpu.download<float>(dx, static_cast<size_t>(count));
    }
    result.dweight = gpu.download<float>(dweight, static_cast<size_t>(c.cols));
    return result;
  };
  const NormResult got = run();
  const NormResult again = run();
  int64_t wrong = different(got.dx, again.dx) + different(got.dweight, again.dweight);
  constexpr double kTerms = 100.0;  // more than any sum's longest chain here, in blocks, lanes and tree
  std::vector<double> dweight(dweight_before.begin(), dweight_before.end());
  std::vector<double> dweight_size(static_cast<size_t>(c.cols));
  for (int64_t r = 0; r < c.rows; ++r) {
    const BF16* row = x.data() + r * stride;
    const float* gradient = dy.data() + r * c.cols;
    const double scale = inv[static_cast<size_t>(r)];
    double sum = 0.0;
    double size = 0.0;
    for (int64_t h = 0; h < c.cols; ++h) {
      const double term =
          static_cast<double>(gradient[h]) * to_float(weight[static_cast<size_t>(h)]) * to_float(row[h]);
      sum += term;
      size += std::abs(term);
    }
    const double cube = scale * scale * scale / static_cast<double>(c.cols);
    for (int64_t h = 0; h < c.cols; ++h) {
      const auto i = static_cast<size_t>(r * c.cols + h);
      const double direct = scale * gradient[h] * to_float(weight[static_cast<size_t>(h)]);
      const double first = c.accumulate ? before[i] : 0.0;
      const double value = first + direct - to_float(row[h]) * cube * sum;
      double bound = kUlp * (kTerms * std::abs(to_float(row[h])) * cube * size + 8 * std::abs(direct) +
                             2 * std::abs(first));
      if (c.bf16) bound += kBf16Ulp * std::abs(value);
      wrong += close(got.dx[i], value, bound) ? 0 : 1;
      const double term = static_cast<double>(gradient[h]) * to_float(row[h]) * scale;
      dweight[static_cast<size_t>(h)] += term;
      dweight_size[static_cast<size_t>(h)] += std::abs(term);
    }
  }
  for (size_t h = 0; h < dweight.size(); ++h) {
    const double bound = kUlp * kTerms * (dweight_size[h] + std::abs(dweight_before[h]));
    wrong += close(got.dweight[h], dweight[h], bound) ? 0 : 1;
  }
  return wrong;
}

}  // namespace

TEST_CASE("backward rows: rms norm within its sums' error and repeatable") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [rows, cols, padding] : {std::tuple<int64_t, int64_t, int64_t>{1, 8, 0},
                                            {5, 64, 0},
                                            {700, 64, 8},
                                            {37, 576, 0},
                                            {9, 17, 3},
                                            {2, 7, 0},
                                            {300, 2048, 2048},
                                            {20, 100, 4},
                                            {33, 768, 8},
                                            {11, 3072, 0},
                                            {9, 7168, 0},
                                            {2, 8192, 0},
                                            {3, 8200, 0},
                                            {0, 64, 0}}) {
    CAPTURE(rows, cols, padding);
    CHECK(norm_differences(*gpu, {rows, cols, padding, false, false, false}) == 0);
    CHECK(norm_differences(*gpu, {rows, cols, padding, true, false, false}) == 0);
    CHECK(norm_differences(*gpu, {rows, cols, padding, false, true, false}) == 0);
    CHECK(norm_differences(*gpu, {rows, cols, padding, false, false, true}) == 0);
  }
  CHECK(norm_differences(*gpu, {40, 64, 0, true, true, false}) == 0);
}
