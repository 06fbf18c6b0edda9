// Activations as operand rows: quantized per token where the format asks for it, then decoded.
#include <algorithm>
#include <cassert>

#include "kernels/formats/decode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/linear/linear.hpp"

namespace accord::kernels {
namespace {

// Rows quantized at a time: their codes stay in L1 until they are decoded.
constexpr int64_t kRowsAtOnce = 8;

void plain_values(MatrixView x, float* out) {
  const int64_t k = padded_k(x.cols);
  for (int64_t r = 0; r < x.rows; ++r, out += k) {
    if (x.dtype == Dtype::kBF16) {
      formats::decode_bf16_row(x.row<BF16>(r), x.cols, out);
    } else {
      std::copy(x.row<float>(r), x.row<float>(r) + x.cols, out);
    }
    std::fill(out + x.cols, out + k, 0.0F);
  }
}

void mxfp8_values(MatrixView x, float* out, Workspace& scratch) {
  const int64_t k = x.cols;
  assert(k % formats::kMxfp8Block == 0);
  const int64_t blocks = k / formats::kMxfp8Block;
  scratch.codes.ensure(static_cast<size_t>(kRowsAtOnce * k));
  scratch.code_scales.ensure(static_cast<size_t>(kRowsAtOnce * blocks));
  auto* codes = scratch.codes.as<uint8_t>();
  auto* scales = scratch.code_scales.as<uint8_t>();
  for (int64_t begin = 0; begin < x.rows; begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, x.rows - begin);
    formats::quantize_mxfp8_rows(x.slice_rows(begin, count), codes, scales, formats::Element::kE4M3);
    for (int64_t r = 0; r < count; ++r, out += k) {
      formats::decode_mxfp8_row(codes + r * k, scales + r * blocks, k, out);
    }
  }
}

void nvfp4_values(MatrixView x, const Nvfp4Scaling& scaling, float* out, float* outer, Workspace& scratch) {
  const int64_t k = x.cols;
  assert(k % formats::kNvfp4Block == 0);
  const int64_t blocks = k / formats::kNvfp4Block;
  scratch.codes.ensure(static_cast<size_t>(kRowsAtOnce * k / 2));
  scratch.code_scales.ensure(static_cast<size_t>(kRowsAtOnce * blocks));
  auto* codes = scratch.codes.as<uint8_t>();
  auto* scales = scratch.code_scales.as<uint8_t>();
  formats::Nvfp4Options options;
  options.scope = formats::Nvfp4Scope::kToken;
  options.four_over_six = scaling.four_over_six;
  options.range = scaling.range;
  for (int64_t begin = 0; begin < x.rows; begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, x.rows - begin);
    formats::quantize_nvfp4(x.slice_rows(begin, count), options, {codes, scales, outer + begin});
    for (int64_t r = 0; r < count; ++r, out += k) {
      formats::decode_nvfp4_products_row(codes + r * (k / 2), scales + r * blocks, k, out);
    }
  }
}

}  // namespace

void make_operand_values(MatrixView x, const ActivationFormat& format, OperandStorage out,
                         Workspace& scratch) {
  switch (format.format) {
    case WeightFormat::kBF16:
      plain_values(x, out.values);
      break;
    case WeightFormat::kMXFP8:
      mxfp8_values(x, out.values, scratch);
      break;
    case WeightFormat::kNVFP4:
      nvfp4_values(x, format.scaling, out.values, out.outer, scratch);
      break;
    case WeightFormat::kF32:
      assert(false);  // no linear has it
      break;
  }
}

Operand make_operand(MatrixView x, const ActivationFormat& format, Workspace& scratch) {
  const int64_t k = padded_k(x.cols);
  scratch.operand_rows.ensure(static_cast<size_t>(x.rows) * sizeof(float*));
  auto* rows = scratch.operand_rows.as<const float*>();
  Operand operand{format, x.rows, x.cols, rows, nullptr};
  if (format.format == WeightFormat::kBF16 && x.dtype == Dtype::kF32 && k == x.cols) {
    for (int64_t r = 0; r < x.rows; ++r) {
      rows[r] = x.row<float>(r);
    }
    return operand;
  }
  scratch.operand.ensure(static_cast<size_t>(x.rows * k) * sizeof(float));
  scratch.operand_outer.ensure(static_cast<size_t>(x.rows) * sizeof(float));
  const OperandStorage storage{scratch.operand.as<float>(), scratch.operand_outer.as<float>()};
  make_operand_values(x, format, storage, scratch);
  for (int64_t r = 0; r < x.rows; ++r) {
    rows[r] = storage.values + r * k;
  }
  operand.outer = storage.outer;
  return operand;
}

}  // namespace accord::kernels
