// Row-local ops of the forward over the CPU's: rmsnorm, swiglu, embedding, logprob.
#include <algorithm>
#include <vector>

#include "kernels/embedding/embedding.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/logprob/logprob.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "kernels/swiglu/swiglu_cuda.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

// What a fused kernel takes of a row.
void check_fused(const Launch& launch, const MatrixView& x) {
  launch.needs(x.dtype == Dtype::kBF16 && fuses_rows(x.cols), "bf16 rows whose length fuses_rows accepts");
  launch.aligned_rows(x, 16, "a row");
}

MatrixView like(std::vector<BF16>& values, const MatrixView& x) {
  values.resize(static_cast<size_t>(x.rows * x.cols));
  return matrix_view(values.data(), x.rows, x.cols);
}

void copy_rows(const MatrixView& from, const Launch& launch, const MatrixView& y) {
  if (y.data == nullptr) return;
  launch.needs(y.dtype == from.dtype && y.cols == from.cols && y.rows >= from.rows, "y of x's shape");
  launch.aligned_rows(y, 16, "a row of y");
  const MatrixView to = launch.at(y, from.rows);
  for (int64_t r = 0; r < from.rows; ++r) std::copy_n(from.row<BF16>(r), from.cols, to.row<BF16>(r));
}

void write_mxfp8(const Launch& launch, const MatrixView& values, uint8_t* q, uint8_t* scale, BF16* operand,
                 StreamHandle stream) {
  launch.needs(values.cols % formats::kMxfp8Block == 0, "rows of whole blocks of 32");
  launch.aligned(q, 16, "q");
  formats::quantize_mxfp8_rows(values, launch.at(q, values.rows * values.cols),
                               launch.at(scale, values.rows * values.cols / formats::kMxfp8Block),
                               formats::Element::kE4M3);
  if (operand == nullptr) return;
  expand_mxfp8(q, scale, values.rows, values.cols, false, false, operand, values.cols, stream);
}

void write_nvfp4(const Launch& launch, const MatrixView& values, const formats::Nvfp4Output& out,
                 FourOverSix four_over_six, int range, BF16* operand, StreamHandle stream) {
  launch.aligned(out.q, 8, "q");
  const formats::Nvfp4Options options{formats::Nvfp4Scope::kToken, formats::Nvfp4Layout::k1x16, four_over_six,
                                      range};
  formats::quantize_nvfp4(values, options,
                          {launch.at(out.q, values.rows * values.cols / 2),
                           launch.at(out.scale, values.rows * values.cols / formats::kNvfp4Block),
                           launch.at(out.amax, values.rows)});
  if (operand == nullptr) return;
  expand_nvfp4(out.q, out.scale, nullptr, false, range, values.rows, values.cols, operand, values.cols,
               stream);
}

// The bf16 values of the fused norm.
MatrixView norm_values(const Launch& launch, const MatrixView& x, const BF16* weight, float eps,
                       float* inv_rms, const Residual& residual, std::vector<BF16>& storage) {
  check_fused(launch, x);
  launch.aligned(weight, 16, "weight");
  const MatrixView values = like(storage, x);
  MatrixView in = launch.at(x);
  if (residual.delta.data != nullptr) {
    for (const MatrixView& rows : {residual.delta, residual.sum}) {
      check_fused(launch, rows);
      launch.needs(rows.cols == x.cols && rows.rows >= x.rows, "delta and sum like x");
    }
    const MatrixView sum = launch.at(residual.sum, x.rows);
    kernels::add_rows(in, launch.at(residual.delta, x.rows), sum);
    in = sum.slice_rows(0, x.rows);
  }
  kernels::rms_norm(in, launch.at(weight, x.cols), eps, values, launch.maybe(inv_rms, x.rows));
  return values;
}

MatrixView swiglu_values(const Launch& launch, const MatrixView& gate, const MatrixView& up,
                         std::vector<BF16>& storage) {
  check_fused(launch, gate);
  check_fused(launch, up);
  launch.needs(gate.cols == up.cols && gate.rows <= up.rows, "gate and up of one shape");
  const MatrixView values = like(storage, gate);
  kernels::swiglu(launch.at(gate), launch.at(up, gate.rows), values);
  return values;
}

}  // namespace

// formats/row_kernel.cuh: at most 512 threads with five units of 16 each.
bool fuses_rows(int64_t cols) { return cols > 0 && cols % 16 == 0 && cols / 16 <= 512 * 5; }

void rms_norm(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, StreamHandle stream,
              const Residual& residual) {
  const auto again = [=](StreamHandle later) { rms_norm(x, weight, eps, y, inv_rms, later, residual); };
  if (emulation::recorded(stream, again)) return;
  const Launch launch("rms_norm", stream);
  launch.needs(x.dtype == y.dtype && x.rows <= y.rows && x.cols == y.cols, "y of x's shape");
  if (x.rows == 0 || x.cols == 0) return;
  if (residual.delta.data != nullptr) {
    std::vector<BF16> storage;
    return copy_rows(norm_values(launch, x, weight, eps, inv_rms, residual, storage), launch, y);
  }
  kernels::rms_norm(launch.at(x), launch.at(weight, x.cols), eps, launch.at(y, x.rows),
                    launch.maybe(inv_rms, x.rows));
}

void rms_norm_mxfp8(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, uint8_t* q,
                    uint8_t* scale, StreamHandle stream, BF16* operand, const Residual& residual) {
  const auto again = [=](StreamHandle later) {
    rms_norm_mxfp8(x, weight, eps, y, inv_rms, q, scale, later, operand, residual);
  };
  if (emulation::recorded(stream, again)) return;
  const Launch launch("rms_norm_mxfp8", stream);
  if (x.rows == 0) return;
  std::vector<BF16> storage;
  const MatrixView values = norm_values(launch, x, weight, eps, inv_rms, residual, storage);
  write_mxfp8(launch, values, q, scale, operand, stream);
  copy_rows(values, launch, y);
}

void rms_norm_nvfp4(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms,
                    const formats::Nvfp4Output& out, FourOverSix four_over_six, int range,
                    StreamHandle stream, BF16* operand, const Residual& residual) {
  const auto again = [=](StreamHandle later) {
    rms_norm_nvfp4(x, weight, eps, y, inv_rms, out, four_over_six, range, later, operand, residual);
  };
  if (emulation::recorded(stream, again)) return;
  const Launch launch("rms_norm_nvfp4", stream);
  if (x.rows == 0) return;
  std::vector<BF16> storage;
  const MatrixView values = norm_values(launch, x, weight, eps, inv_rms, residual, storage);
  write_nvfp4(launch, values, out, four_over_six, range, operand, stream);
  copy_rows(values, launch, y);
}

void swiglu(MatrixView gate, MatrixView up, MatrixView y, StreamHandle stream) {
  if (emulation::recorded(stream, swiglu, gate, up, y)) return;
  const Launch launch("swiglu", stream);
  launch.needs(gate.dtype == up.dtype && gate.dtype == y.dtype && gate.cols == up.cols && gate.cols == y.cols,
               "gate, up and y of one shape and dtype");
  if (gate.rows == 0 || gate.cols == 0) return;
  kernels::swiglu(launch.at(gate), launch.at(up, gate.rows), launch.at(y, gate.rows));
}

void swiglu_mxfp8(MatrixView gate, MatrixView up, MatrixView y, uint8_t* q, uint8_t* scale,
                  StreamHandle stream, BF16* operand) {
  const auto again = [=](StreamHandle later) { swiglu_mxfp8(gate, up, y, q, scale, later, operand); };
  if (emulation::recorded(stream, again)) return;
  const Launch launch("swiglu_mxfp8", stream);
  if (gate.rows == 0) return;
  std::vector<BF16> storage;
  const MatrixView values = swiglu_values(launch, gate, up, storage);
  write_mxfp8(launch, values, q, scale, operand, stream);
  copy_rows(values, launch, y);
}

void swiglu_nvfp4(MatrixView gate, MatrixView up, MatrixView y, const formats::Nvfp4Output& out,
                  FourOverSix four_over_six, int range, StreamHandle stream, BF16* operand) {
  const auto again = [=](StreamHandle later) {
    swiglu_nvfp4(gate, up, y, out, four_over_six, range, later, operand);
  };
  if (emulation::recorded(stream, again)) return;
  const Launch launch("swiglu_nvfp4", stream);
  if (gate.rows == 0) return;
  std::vector<BF16> storage;
  const MatrixView values = swiglu_values(launch, gate, up, storage);
  write_nvfp4(launch, values, out, four_over_six, range, operand, stream);
  copy_rows(values, launch, y);
}

void embed_rows(const BF16* table, const int32_t* tokens, int64_t num_tokens, MatrixView y,
                StreamHandle stream) {
  if (emulation::recorded(stream, embed_rows, table, tokens, num_tokens, y)) return;
  const Launch launch("embed_rows", stream);
  if (num_tokens == 0 || y.cols == 0) return;
  launch.needs(y.dtype == Dtype::kBF16 || y.dtype == Dtype::kF32, "y of bf16 or fp32");
  const int32_t* ids = launch.at(tokens, num_tokens);
  const auto [least, largest] = std::minmax_element(ids, ids + num_tokens);
  launch.needs(*least >= 0, "token ids from 0 on");
  const BF16* rows = launch.at(table, (int64_t{*largest} + 1) * y.cols);
  kernels::embed_rows(rows, {ids, static_cast<size_t>(num_tokens)}, launch.at(y, num_tokens));
}

void add_rows(MatrixView x, MatrixView delta, MatrixView y, StreamHandle stream) {
  if (emulation::recorded(stream, add_rows, x, delta, y)) return;
  const Launch launch("add_rows", stream);
  launch.needs(x.dtype == delta.dtype && x.dtype == y.dtype && x.cols == delta.cols && x.cols == y.cols,
               "x, delta and y of one shape and dtype");
  if (x.rows == 0 || x.cols == 0) return;
  kernels::add_rows(launch.at(x), launch.at(delta, x.rows), launch.at(y, x.rows));
}

void token_logprobs(MatrixView logits, const float* temperatures, const int32_t* tokens, float* logprobs,
                    float* entropies, StreamHandle stream) {
  if (emulation::recorded(stream, token_logprobs, logits, temperatures, tokens, logprobs, entropies)) return;
  const Launch launch("token_logprobs", stream);
  launch.needs(logits.dtype == Dtype::kF32, "fp32 logits");
  if (logits.rows == 0 || logits.cols == 0) return;
  const MatrixView in = launch.at(logits);
  const float* temperature = launch.at(temperatures, in.rows);
  const int32_t* token = launch.at(tokens, in.rows);
  float* out = launch.maybe(logprobs, in.rows);
  float* entropy = launch.maybe(entropies, in.rows);
  for (int64_t r = 0; r < in.rows; ++r) {
    launch.needs(token[r] >= 0 && token[r] < in.cols, "tokens of the vocabulary");
    launch.needs(temperature[r] > 0.0F, "positive temperatures");
    const float* row = in.row<float>(r);
    const SoftmaxStats stats = softmax_stats(row, in.cols, temperature[r]);
    if (out != nullptr) out[r] = token_logprob(stats, row[token[r]], temperature[r]);
    if (entropy != nullptr) entropy[r] = softmax_entropy(row, in.cols, temperature[r], stats);
  }
}

}  // namespace accord::kernels::cuda
