// Quantizers, decoders and their health over the CPU's (formats/*_cuda.hpp).
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/formats/amax.hpp"
#include "kernels/formats/decode_cuda.hpp"
#include "kernels/formats/health_cuda.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::formats::cuda {
namespace {

using emulation::Launch;

constexpr int64_t kBlock = kMxfp8Block;

bool is_float(Dtype dtype) { return dtype == Dtype::kBF16 || dtype == Dtype::kF32; }

int64_t scales_of(const MatrixView& x, Axis axis) {
  return axis == Axis::kRow ? x.rows * (x.cols / kBlock) : x.rows / kBlock * x.cols;
}

void quantize_axis(const Launch& launch, const MatrixView& x, uint8_t* q, uint8_t* scale, Axis axis,
                   Element element) {
  launch.needs(is_float(x.dtype), "bf16 or fp32");
  launch.needs((axis == Axis::kRow ? x.cols : x.rows) % kBlock == 0, "whole blocks of 32");
  if (x.rows == 0 || x.cols == 0) return;
  launch.aligned(q, 8, "q");
  const MatrixView in = launch.at(x);
  uint8_t* q_out = launch.at(q, x.rows * x.cols);
  uint8_t* scale_out = launch.at(scale, scales_of(x, axis));
  if (axis == Axis::kRow) {
    formats::quantize_mxfp8_rows(in, q_out, scale_out, element);
  } else {
    formats::quantize_mxfp8_cols(in, q_out, scale_out, element);
  }
}

void dequantize_axis(const Launch& launch, const uint8_t* q, const uint8_t* scale, Axis axis, Element element,
                     const MatrixView& out) {
  launch.needs(is_float(out.dtype), "bf16 or fp32");
  launch.needs((axis == Axis::kRow ? out.cols : out.rows) % kBlock == 0, "whole blocks of 32");
  if (out.rows == 0 || out.cols == 0) return;
  if (axis == Axis::kRow) launch.aligned(q, 16, "q");
  std::vector<float> values(static_cast<size_t>(out.rows * out.cols));
  formats::dequantize_mxfp8(launch.at(q, out.rows * out.cols), launch.at(scale, scales_of(out, axis)),
                            out.rows, out.cols, axis, element, values.data());
  emulation::store_rows(values.data(), launch.at(out));
}

bool within(const ColumnPart& part, const MatrixView& out, int64_t block) {
  return part.cols % block == 0 && part.first % block == 0 && part.first >= 0 &&
         part.first + out.cols <= part.cols;
}

// The record that the CPU's quantizer makes; its scales must be the ones that were passed.
template <class Quantize>
void measure(const Launch& launch, const MatrixView& x, const uint8_t* scale, int64_t scales,
             QuantHealth* result, QuantHealth* scratch, Quantize quantize) {
  launch.needs(is_float(x.dtype), "bf16 or fp32");
  launch.scratch(scratch, kHealthScratch);
  QuantHealth health;
  if (x.rows != 0 && x.cols != 0) {
    std::vector<uint8_t> q(static_cast<size_t>(x.rows * x.cols));
    std::vector<uint8_t> scale_again(static_cast<size_t>(scales));
    quantize(launch.at(x), q.data(), scale_again.data(), &health);
    launch.needs(std::memcmp(launch.at(scale, scales), scale_again.data(), scale_again.size()) == 0,
                 "the scales of this tensor");
  }
  *launch.at(result, 1) = health;
}

}  // namespace

void quantize_mxfp8_rows(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream,
                         BF16* operand) {
  const auto run = [=](StreamHandle on) {
    quantize_axis(Launch("quantize_mxfp8_rows", on), x, q, scale, Axis::kRow, element);
    if (operand == nullptr) return;
    kernels::cuda::expand_mxfp8(q, scale, x.rows, x.cols, false, element == Element::kE5M2, operand, x.cols,
                                on);
  };
  if (!emulation::recorded(stream, run)) run(stream);
}

void quantize_mxfp8_cols(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream) {
  quantize_axis(Launch("quantize_mxfp8_cols", stream), x, q, scale, Axis::kCol, element);
}

void quantize_mxfp8_both(MatrixView x, uint8_t* row_q, uint8_t* row_scale, uint8_t* col_q, uint8_t* col_scale,
                         Element element, StreamHandle stream) {
  const Launch launch("quantize_mxfp8_both", stream);
  launch.needs(x.rows % kBlock == 0 && x.cols % kBlock == 0, "whole blocks of 32 both ways");
  quantize_axis(launch, x, row_q, row_scale, Axis::kRow, element);
  quantize_axis(launch, x, col_q, col_scale, Axis::kCol, element);
}

void dequantize_mxfp8_rows(const uint8_t* q, const uint8_t* scale, Element element, MatrixView out,
                           StreamHandle stream, ColumnPart part) {
  const Launch launch("dequantize_mxfp8_rows", stream);
  if (part.cols == 0) part.cols = out.cols;
  launch.needs(within(part, out, kBlock), "columns of the matrix, in whole blocks");
  for (int64_t r = 0; r < out.rows; ++r) {  // rows of a part are apart
    const int64_t at = r * part.cols + part.first;
    dequantize_axis(launch, q + at, scale + at / kBlock, Axis::kRow, element, out.slice_rows(r, 1));
  }
}

void dequantize_mxfp8_cols(const uint8_t* q, const uint8_t* scale, Element element, MatrixView out,
                           StreamHandle stream) {
  dequantize_axis(Launch("dequantize_mxfp8_cols", stream), q, scale, Axis::kCol, element, out);
}

void dequantize_nvfp4(const uint8_t* q, const uint8_t* scale, const float* amax, Nvfp4Scope scope, int range,
                      MatrixView out, StreamHandle stream, ColumnPart part) {
  const Launch launch("dequantize_nvfp4", stream);
  launch.needs(out.cols % kNvfp4Block == 0 && is_float(out.dtype), "whole blocks of 16 of bf16 or fp32");
  if (out.rows == 0 || out.cols == 0) return;
  launch.aligned(q, 8, "q");
  if (part.cols == 0) part.cols = out.cols;
  launch.needs(within(part, out, kNvfp4Block), "columns of the matrix, in whole blocks");
  const bool per_row = scope == Nvfp4Scope::kToken;
  const float* const outer = launch.at(amax, per_row ? out.rows : 1);
  std::vector<float> values(static_cast<size_t>(out.rows * out.cols));
  for (int64_t r = 0; r < out.rows; ++r) {  // rows of a part are apart
    const int64_t at = r * part.cols + part.first;
    formats::dequantize_nvfp4(
        launch.at(q + at / 2, out.cols / 2), launch.at(scale + at / kNvfp4Block, out.cols / kNvfp4Block),
        outer + (per_row ? r : 0), 1, out.cols, scope, range, values.data() + r * out.cols);
  }
  emulation::store_rows(values.data(), launch.at(out));
}

void dequantize_nvfp4_products(const uint8_t* q, const uint8_t* scale, MatrixView out, StreamHandle stream) {
  const Launch launch("dequantize_nvfp4_products", stream);
  launch.needs(out.cols % kNvfp4Block == 0 && is_float(out.dtype), "whole blocks of 16 of bf16 or fp32");
  if (out.rows == 0 || out.cols == 0) return;
  launch.aligned(q, 8, "q");
  const uint8_t* codes = launch.at(q, out.rows * out.cols / 2);
  const uint8_t* scales = launch.at(scale, out.rows * out.cols / kNvfp4Block);
  std::vector<float> values(static_cast<size_t>(out.rows * out.cols));
  for (int64_t r = 0; r < out.rows; ++r) {
    formats::decode_nvfp4_products_row(codes + r * (out.cols / 2), scales + r * (out.cols / kNvfp4Block),
                                       out.cols, values.data() + r * out.cols);
  }
  emulation::store_rows(values.data(), launch.at(out));
}

void amax(MatrixView x, float* result, bool accumulate, float* scratch, StreamHandle stream) {
  const Launch launch("amax", stream);
  launch.needs(is_float(x.dtype), "bf16 or fp32");
  const float value = x.rows == 0 || x.cols == 0 ? 0.0F : formats::amax(launch.at(x));
  launch.scratch(scratch, kAmaxScratch);
  float* out = launch.at(result, 1);
  *out = accumulate && *out > value ? *out : value;
}

void quantize_nvfp4(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out,
                    const float* shared_amax, float* scratch, StreamHandle stream, BF16* operand) {
  const auto again = [=](StreamHandle later) {
    quantize_nvfp4(x, options, out, shared_amax, scratch, later, operand);
  };
  if (emulation::recorded(stream, again)) return;
  const Launch launch("quantize_nvfp4", stream);
  launch.needs(is_float(x.dtype), "bf16 or fp32");
  launch.needs(check_nvfp4_shape(x.rows, x.cols, options).ok(), "a shape that the options allow");
  if (x.rows == 0 || x.cols == 0) return;
  const bool per_token = options.scope == Nvfp4Scope::kToken;
  launch.needs(!per_token || shared_amax == nullptr, "no shared amax with scope token");
  launch.aligned(out.q, 8, "q");
  if (!per_token && shared_amax == nullptr) launch.scratch(scratch, kAmaxScratch);
  formats::quantize_nvfp4(
      launch.at(x), options,
      {launch.at(out.q, x.rows * x.cols / 2), launch.at(out.scale, x.rows * x.cols / kNvfp4Block),
       launch.at(out.amax, per_token ? x.rows : 1)},
      launch.maybe(shared_amax, 1));
  if (operand == nullptr) return;
  launch.needs(per_token && fuses_operand(x), "an operand of rows that fuses_operand accepts");
  kernels::cuda::expand_nvfp4(out.q, out.scale, nullptr, false, options.range, x.rows, x.cols, operand,
                              x.cols, stream);
}

bool fuses_operand(MatrixView x) {
  const int64_t bytes = x.stride * size_of(x.dtype);
  return kernels::cuda::fuses_rows(x.cols) && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         (x.rows <= 1 || bytes % 16 == 0);
}

void measure_mxfp8_rows(MatrixView x, const uint8_t* scale, Element element, QuantHealth* result,
                        QuantHealth* scratch, StreamHandle stream) {
  measure(Launch("measure_mxfp8_rows", stream), x, scale, scales_of(x, Axis::kRow), result, scratch,
          [&](const MatrixView& in, uint8_t* q, uint8_t* s, QuantHealth* health) {
            formats::quantize_mxfp8_rows(in, q, s, element, health);
          });
}

void measure_mxfp8_cols(MatrixView x, const uint8_t* scale, Element element, QuantHealth* result,
                        QuantHealth* scratch, StreamHandle stream) {
  measure(Launch("measure_mxfp8_cols", stream), x, scale, scales_of(x, Axis::kCol), result, scratch,
          [&](const MatrixView& in, uint8_t* q, uint8_t* s, QuantHealth* health) {
            formats::quantize_mxfp8_cols(in, q, s, element, health);
          });
}

void measure_nvfp4(MatrixView x, const Nvfp4Options& options, const uint8_t* scale, const float* amax,
                   QuantHealth* result, QuantHealth* scratch, StreamHandle stream) {
  const Launch launch("measure_nvfp4", stream);
  const bool per_token = options.scope == Nvfp4Scope::kToken;
  const float* outer = launch.at(amax, x.cols == 0 ? 0 : per_token ? x.rows : 1);
  measure(launch, x, scale, x.rows * (x.cols / kNvfp4Block), result, scratch,
          [&](const MatrixView& in, uint8_t* q, uint8_t* s, QuantHealth* health) {
            std::vector<float> again(static_cast<size_t>(in.rows));
            formats::quantize_nvfp4(in, options, {q, s, again.data()}, per_token ? nullptr : outer, health);
          });
}

}  // namespace accord::formats::cuda
