// Quantized operands as BF16 (gemm_cuda.hpp, linear_backward_cuda.hpp).
#include <algorithm>
#include <vector>

#include "kernels/formats/decode.hpp"
#include "kernels/formats/element.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/linear/linear_backward.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

MatrixView bf16_view(const Launch& launch, BF16* out, int64_t rows, int64_t cols, int64_t ldo) {
  return launch.at(MatrixView{out, Dtype::kBF16, rows, cols, ldo});
}

}  // namespace

void expand_mxfp8(const uint8_t* q, const uint8_t* scales, int64_t rows, int64_t cols, bool column_wise,
                  bool e5m2, BF16* out, int64_t ldo, StreamHandle stream) {
  if (emulation::recorded(stream, expand_mxfp8, q, scales, rows, cols, column_wise, e5m2, out, ldo)) return;
  const Launch launch("expand_mxfp8", stream);
  launch.needs(cols % 8 == 0 && ldo % 8 == 0 && (column_wise ? rows : cols) % 32 == 0,
               "cols % 8 == 0 && ldo % 8 == 0 && (column_wise ? rows : cols) % 32 == 0");
  if (rows == 0 || cols == 0) return;
  launch.aligned(q, 8, "q");
  launch.aligned(out, 16, "out");
  std::vector<float> values = emulation::floats(rows * cols);
  formats::dequantize_mxfp8(launch.at(q, rows * cols), launch.at(scales, rows * cols / 32), rows, cols,
                            column_wise ? formats::Axis::kCol : formats::Axis::kRow,
                            e5m2 ? formats::Element::kE5M2 : formats::Element::kE4M3, values.data());
  emulation::store_rows(values.data(), bf16_view(launch, out, rows, cols, ldo));
}

void expand_nvfp4(const uint8_t* q, const uint8_t* scales, const float* outer, bool outer_per_row,
                  int32_t range, int64_t rows, int64_t cols, BF16* out, int64_t ldo, StreamHandle stream) {
  if (emulation::recorded(stream, expand_nvfp4, q, scales, outer, outer_per_row, range, rows, cols, out, ldo))
    return;
  const Launch launch("expand_nvfp4", stream);
  launch.needs(cols % 16 == 0 && ldo % 8 == 0, "cols % 16 == 0 && ldo % 8 == 0");
  if (rows == 0 || cols == 0) return;
  launch.aligned(q, 4, "q");
  launch.aligned(out, 16, "out");
  const uint8_t* codes = launch.at(q, rows * cols / 2);
  const uint8_t* blocks = launch.at(scales, rows * cols / 16);
  const float* amax = launch.maybe(outer, outer_per_row ? rows : 1);
  std::vector<float> values = emulation::floats(rows * cols);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = values.data() + r * cols;
    if (amax == nullptr) {
      formats::decode_nvfp4_products_row(codes + r * (cols / 2), blocks + r * (cols / 16), cols, row);
    } else {
      formats::decode_nvfp4_row(codes + r * (cols / 2), blocks + r * (cols / 16), amax[outer_per_row ? r : 0],
                                range, cols, row);
    }
  }
  emulation::store_rows(values.data(), bf16_view(launch, out, rows, cols, ldo));
}

void check_mxfp8_range(const uint8_t* q, const uint8_t* scales, int64_t rows, int64_t cols, int32_t* flag,
                       StreamHandle stream) {
  const Launch launch("check_mxfp8_range", stream);
  launch.needs(cols % 32 == 0, "cols % 32 == 0");
  const int64_t blocks = rows * (cols / 32);
  if (blocks == 0) return;
  launch.aligned(q, 16, "q");
  const uint8_t* codes = launch.at(q, blocks * 32);
  const uint8_t* scale = launch.at(scales, blocks);
  int32_t* result = launch.at(flag, 1);
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* block = codes + b * 32;
    const bool zero = std::all_of(block, block + 32, [](uint8_t code) { return (code & 0x7f) == 0; });
    const bool nan =
        scale[b] == 255 || std::any_of(block, block + 32, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
    const int exponent = static_cast<int>(scale[b]) - 127;
    if (!zero && (exponent < -117 || exponent > 119)) *result |= 1;
    if (nan) *result |= 2;
  }
}

void round_to_bf16(const float* x, int64_t count, BF16* y, StreamHandle stream) {
  const Launch launch("round_to_bf16", stream);
  if (count == 0) return;
  emulation::store_row(launch.at(x, count), count, launch.at(y, count));
}

void mxfp8_columns(MatrixView x, const int32_t* offsets, int32_t groups, formats::Element element, BF16* out,
                   StreamHandle stream) {
  const Launch launch("mxfp8_columns", stream);
  launch.needs(x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32, "bf16 or fp32");
  if (x.rows == 0 || x.cols == 0) return;
  const MatrixView in = launch.at(x);
  std::vector<float> values = emulation::floats(x.rows * x.cols);
  kernels::widen(in, values.data());
  kernels::round_to_bf16(values.data(), x.rows * x.cols, values.data());
  std::vector<int32_t> begins = {0, static_cast<int32_t>(x.rows)};
  if (groups > 0) {
    const int32_t* given = launch.at(offsets, groups + 1);
    begins.assign(given, given + groups + 1);
    launch.needs(
        begins.front() == 0 && begins.back() == x.rows && std::is_sorted(begins.begin(), begins.end()),
        "groups that cover all rows in order");
  }
  std::vector<float> scratch = emulation::floats(backward_operand_scratch(x.cols));
  for (size_t g = 0; g + 1 < begins.size(); ++g) {
    float* part = values.data() + begins[g] * x.cols;
    mxfp8_operand(part, begins[g + 1] - begins[g], x.cols, formats::Axis::kCol, element, part,
                  scratch.data());
  }
  emulation::store_row(values.data(), x.rows * x.cols, launch.at(out, x.rows * x.cols));
}

}  // namespace accord::kernels::cuda
