// Operands of a linear layer's backward, and rows and columns moved, on the device against the CPU's.
#include <algorithm>
#include <cstdio>
#include <string>

#include "gpu.hpp"
#include "hard_values.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/linear/linear_backward.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using formats::Element;
using gpu_test::different;
using gpu_test::Gpu;
namespace cuda = accord::kernels::cuda;

namespace {

// Hard values [rows, cols]; `along_columns`: of one kind a column instead of a row.
std::vector<float> hard(uint64_t seed, int64_t rows, int64_t cols, bool along_columns, ThreadPool& pool) {
  std::vector<float> x(static_cast<size_t>(rows * cols));
  if (!along_columns) {
    gpu_test::fill_hard(seed, rows, cols, x.data(), pool);
    return x;
  }
  std::vector<float> turned(x.size());
  gpu_test::fill_hard(seed, cols, rows, turned.data(), pool);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      x[static_cast<size_t>(r * cols + c)] = turned[static_cast<size_t>(c * rows + r)];
    }
  }
  return x;
}

std::vector<BF16> narrowed(const std::vector<float>& x) {
  std::vector<BF16> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), [](float value) { return to_bf16(value); });
  return y;
}

// Rows of [rows, cols] with `padding` elements after each.
template <class T>
std::vector<T> with_stride(const std::vector<T>& x, int64_t rows, int64_t cols, int64_t padding) {
  std::vector<T> y(static_cast<size_t>(rows * (cols + padding)), from_float<T>(7.0F));
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(x.begin() + r * cols, cols, y.begin() + r * (cols + padding));
  }
  return y;
}

// What mxfp8_columns must give: the CPU's operand of each group's bf16 values.
std::vector<BF16> expected_columns(const std::vector<float>& x, int64_t rows, int64_t cols,
                                   const std::vector<int32_t>& groups, Element element) {
  const std::vector<int32_t> whole = {0, static_cast<int32_t>(rows)};
  const std::vector<int32_t>& offsets = groups.empty() ? whole : groups;
  std::vector<BF16> out(x.size());
  std::vector<float> scratch(static_cast<size_t>(kernels::backward_operand_scratch(cols)));
  for (size_t g = 0; g + 1 < offsets.size(); ++g) {
    const int64_t begin = offsets[g] * cols;
    const int64_t count = (offsets[g + 1] - offsets[g]) * cols;
    if (count == 0) continue;
    std::vector<float> part(static_cast<size_t>(count));
    kernels::round_to_bf16(x.data() + begin, count, part.data());
    kernels::mxfp8_operand(part.data(), count / cols, cols, formats::Axis::kCol, element, part.data(),
                           scratch.data());
    for (int64_t i = 0; i < count; ++i) {
      out[static_cast<size_t>(begin + i)] = to_bf16(part[static_cast<size_t>(i)]);
    }
  }
  return out;
}

template <class T>
int64_t compare_columns(const Gpu& gpu, const std::vector<T>& x, int64_t rows, int64_t cols, int64_t padding,
                        const std::vector<int32_t>& offsets, Element element,
                        const std::vector<BF16>& expected) {
  const Memory data = gpu.upload(with_stride(x, rows, cols, padding));
  const Memory device_offsets = gpu.upload(offsets);
  const Memory out = gpu.allocate(x.size() * sizeof(BF16));
  const auto groups = static_cast<int32_t>(offsets.empty() ? 0 : offsets.size() - 1);
  cuda::mxfp8_columns({data.data(), DtypeOf<T>::value, rows, cols, cols + padding},
                      offsets.empty() ? nullptr : device_offsets.as<int32_t>(), groups, element,
                      out.as<BF16>(), gpu.handle());
  return different(gpu.download<BF16>(out, x.size()), expected);
}

}  // namespace

TEST_CASE("round to bf16 has the bits of the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{4099}, int64_t{1} << 22}) {
    const std::vector<float> x = hard(3, 1, count + 1, count % 2 == 1, pool);
    const Memory data = gpu->upload(x);
    for (const int64_t first : {0, 1}) {  // aligned and not
      const Memory y = gpu->allocate(static_cast<size_t>(count) * sizeof(BF16));
      cuda::round_to_bf16(data.as<float>() + first, count, y.as<BF16>(), gpu->handle());
      const std::vector<float> part(x.begin() + first, x.begin() + first + count);
      CHECK(different(gpu->download<BF16>(y, static_cast<size_t>(count)), narrowed(part)) == 0);
    }
  }
}

TEST_CASE("MXFP8 by columns decodes to the values of the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  struct Case {
    int64_t rows, cols, padding;
    std::vector<int32_t> offsets;
  };
  const Case cases[] = {{1, 64, 0, {}},
                        {32, 8, 0, {}},
                        {100, 576, 0, {}},
                        {257, 1536, 64, {}},
                        {64, 37, 0, {}},
                        {70, 100, 3, {}},
                        {300, 256, 0, {0, 300}},
                        {300, 256, 0, {0, 0, 1, 33, 33, 33, 64, 96, 223, 300, 300}},
                        {300, 68, 4, {0, 31, 63, 64, 65, 160, 300}},
                        {129, 37, 2, {0, 5, 5, 97, 129}},
                        {4096, 512, 0, {0, 700, 701, 2048, 2080, 4000, 4096}}};
  for (const Case& c : cases) {
    int64_t wrong = 0;
    for (const bool along_columns : {false, true}) {
      const std::vector<float> x = hard(11, c.rows, c.cols, along_columns, pool);
      for (const Element element : {Element::kE4M3, Element::kE5M2}) {
        const std::vector<BF16> expected = expected_columns(x, c.rows, c.cols, c.offsets, element);
        wrong += compare_columns(*gpu, x, c.rows, c.cols, c.padding, c.offsets, element, expected);
        wrong += compare_columns(*gpu, narrowed(x), c.rows, c.cols, c.padding, c.offsets, element, expected);
      }
    }
    std::printf("mxfp8 columns [%lld, %lld] groups %zu: %lld values, %lld differ\n",
                static_cast<long long>(c.rows), static_cast<long long>(c.cols),
                c.offsets.empty() ? 0 : c.offsets.size() - 1, static_cast<long long>(8 * c.rows * c.cols),
                static_cast<long long>(wrong));
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows and columns are moved and nothing else is written") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  struct Case {
    Dtype dtype;
    int64_t rows, y_rows, x_stride, y_stride;
    cuda::ColumnGroups columns;
    bool scattered;
  };
  const Case cases[] = {{Dtype::kBF16, 50, 80, 64, 64, {1, 64, 0, 0, 0, 0}, true},
                        {Dtype::kBF16, 33, 33, 576, 576, {1, 64, 512, 0, 512, 0}, false},
                        {Dtype::kBF16, 33, 33, 768, 512, {4, 128, 0, 192, 0, 128}, false},
                        {Dtype::kF32, 20, 40, 96, 64, {4, 16, 4, 24, 0, 16}, true},
                        {Dtype::kBF16, 17, 17, 37, 41, {3, 5, 1, 11, 2, 13}, false},
                        {Dtype::kF32, 3000, 3001, 20, 9, {1, 9, 3, 0, 0, 0}, true},
                        {Dtype::kU8, 19, 25, 40, 33, {2, 7, 1, 20, 3, 15}, true},
                        {Dtype::kI64, 9, 9, 6, 6, {1, 5, 1, 0, 0, 0}, false},
                        {Dtype::kF32, 2, 2, 9000, 9000, {1, 9000, 0, 0, 0, 0}, false}};
  for (const Case& c : cases) {
    const int64_t size = size_of(c.dtype);
    std::vector<uint8_t> x(static_cast<size_t>(c.rows * c.x_stride * size));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    std::vector<int32_t> to(static_cast<size_t>(c.rows));
    for (int64_t r = 0; r < c.rows; ++r) {
      to[static_cast<size_t>(r)] = static_cast<int32_t>(c.scattered ? (c.y_rows - 1 - r) : r);
    }
    if (c.scattered) std::swap(to.front(), to[to.size() / 2]);
    std::vector<uint8_t> expected(static_cast<size_t>(c.y_rows * c.y_stride * size), 0xa5);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t g = 0; g < c.columns.groups; ++g) {
        const int64_t from = r * c.x_stride + c.columns.x_first + g * c.columns.x_stride;
        const int64_t at =
            to[static_cast<size_t>(r)] * c.y_stride + c.columns.y_first + g * c.columns.y_stride;
        std::copy_n(x.begin() + from * size, c.columns.count * size, expected.begin() + at * size);
      }
    }
    const Memory from = gpu->upload(x);
    const Memory rows = gpu->upload(to);
    const Memory y = gpu->allocate(expected.size());
    const MatrixView x_view{from.data(), c.dtype, c.rows, c.x_stride, c.x_stride};
    const MatrixView y_view{y.data(), c.dtype, c.y_rows, c.y_stride, c.y_stride};
    const bool whole = c.columns.groups == 1 && c.columns.count == c.x_stride && c.x_stride == c.y_stride;
    if (c.scattered && whole) {
      cuda::scatter_rows(x_view, rows.as<int32_t>(), y_view, gpu->handle());
    } else {
      cuda::copy_columns(x_view, c.columns, c.scattered ? rows.as<int32_t>() : nullptr, y_view,
                         gpu->handle());
    }
    CHECK(different(gpu->download<uint8_t>(y, expected.size()), expected) == 0);
  }
}
