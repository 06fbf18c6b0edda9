#include <algorithm>
#include <vector>

#include "kernels/copy/copy_cuda.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/decode_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "trainer/cuda_linear_backward.hpp"

namespace accord::trainer {

using model::LinearWeight;
using recipe::BackwardMode;
namespace cuda = kernels::cuda;

namespace {

enum Part : size_t {  // of experts and of padded linears
  kWeight,
  kTable,
  kInput,
  kGathered,
  kColumnsDy,
  kPaddedDy,
  kPaddedWeight,
  kPaddedGradient,
  kParts
};

constexpr int64_t kOutputs = 8;  // the products take multiples of it
constexpr int64_t kBlock = 32;   // of MXFP8
// Elements of an operand from where on it is made in pieces, and the columns that a piece has at least:
// products of fewer would leave multiprocessors idle.
constexpr int64_t kPieceElements = int64_t{1} << 23;
constexpr int64_t kPieceColumns = 1024;
// Elements that are quantized and decoded in one go.
constexpr int64_t kCodeElements = int64_t{1} << 22;

// Columns of a piece of [rows, cols].
int64_t piece_of(int64_t rows, int64_t cols) {
  if (rows * cols <= kPieceElements) return cols;
  return std::min(cols, std::max(kPieceColumns, kPieceElements / rows / kBlock * kBlock));
}

// Rows of [rows, cols] whose codes are there at once, and the bytes of those codes.
int64_t code_rows(int64_t rows, int64_t cols) {
  return std::min(rows, std::max(kBlock, kCodeElements / cols / kBlock * kBlock));
}
int64_t code_bytes(int64_t rows, int64_t cols) {
  const int64_t r = code_rows(rows, cols);
  return CudaFrame::padded(r * cols) + CudaFrame::padded(r * (cols / formats::kNvfp4Block)) +
         CudaFrame::padded(r * static_cast<int64_t>(sizeof(float)));
}
int64_t bf16_bytes(int64_t count) { return CudaFrame::padded(count * static_cast<int64_t>(sizeof(BF16))); }

int64_t padded(int64_t outputs) { return (outputs + kOutputs - 1) / kOutputs * kOutputs; }

cuda::GemmBackward dgrad(const LinearWeight& w, int64_t rows, const BF16* dy, const BF16* weight,
                         CudaInputGradient dx) {
  cuda::GemmBackward g;
  g.m = rows;
  g.n = w.k;
  g.l = w.n;
  g.a = dy;
  g.lda = w.n;
  g.b = weight;
  g.ldb = w.k;
  g.c = {dx.data, w.k, dx.bf16, dx.accumulate};
  return g;
}

cuda::GemmBackward wgrad(const LinearWeight& w, int64_t rows, const BF16* dy, const BF16* x,
                         float* gradient) {
  cuda::GemmBackward g;
  g.m = w.n;
  g.n = w.k;
  g.l = rows;
  g.a = dy;
  g.lda = w.n;
  g.b = x;
  g.ldb = w.k;
  g.c = {gradient, w.k, false, true};
  return g;
}

MatrixView view(const BF16* x, int64_t rows, int64_t cols) {
  return matrix_view(const_cast<BF16*>(x), rows, cols);  // kernels only read it
}

}  // namespace

Status check_cuda_backward(const ModelConfig& config) {
  for (const ParamSpec& spec : parameter_specs(config)) {
    if (spec.shape.size() != 2) continue;
    const bool table = spec.role == ParamRole::kEmbedding && !config.tie_word_embeddings;
    if (table) continue;  // no product reads it
    LinearWeight w;
    w.n = spec.expert < 0 ? padded(spec.shape[0]) : spec.shape[0];
    w.k = spec.shape[1];
    const cuda::GemmBackward rows = dgrad(w, 1, nullptr, nullptr, {});
    const cuda::GemmBackward columns = wgrad(w, 1, nullptr, nullptr, nullptr);
    if (cuda::gemm_dgrad_takes(rows) && cuda::gemm_wgrad_takes(columns)) continue;
    return recipe_error(
        "{} [{}, {}]: the backward's CUDA kernels need the input size, and an expert's "
        "output size, to be multiples of 8 (use device: "
        "cpu)",
        spec.name, spec.shape[0], w.k);
  }
  return absl::OkStatus();
}

CudaLinearBackward::CudaLinearBackward(const CudaContext& context)
    : c_(context), scratch_(context.device, kParts), frame_(context.device) {}

BackwardMode CudaLinearBackward::mode_of(const LinearWeight& weight) const {
  return weight.format == WeightFormat::kBF16 ? BackwardMode::kHighPrecision : c_.backward.mode;
}

formats::Element CudaLinearBackward::element_of(int64_t parameter) const {
  return c_.backward.e5m2(parameter) ? formats::Element::kE5M2 : formats::Element::kE4M3;
}

bool CudaLinearBackward::has_original(int64_t parameter, const LinearWeight& w) const {
  return mode_of(w) == BackwardMode::kHighPrecision && c_.parameters.original(parameter) != nullptr;
}

void CudaLinearBackward::make_weight(int64_t parameter, const LinearWeight& w, int64_t first, int64_t count,
                                     BF16* out) {
  const BF16* original = c_.parameters.original(parameter);
  const MatrixView to = matrix_view(out, w.n, count);
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  const formats::cuda::ColumnPart part{w.k, first};
  switch (mode_of(w)) {
    case BackwardMode::kHighPrecision:
      cuda::round_to_bf16(c_.parameters.master(parameter), w.n * w.k, out, c_.handle());
      return;
    case BackwardMode::kDequantized:
      if (w.format == WeightFormat::kMXFP8) {
        formats::cuda::dequantize_mxfp8_rows(bytes, w.scales, formats::Element::kE4M3, to, c_.handle(), part);
      } else {
        formats::cuda::dequantize_nvfp4(bytes, w.scales, w.outer, formats::Nvfp4Scope::kTensor,
                                        w.scaling.range, to, c_.handle(), part);
      }
      return;
    case BackwardMode::kQuantized: {
      auto* const master = const_cast<float*>(c_.parameters.master(parameter));
      const MatrixView from = original != nullptr ? view(original, w.n, w.k) : matrix_view(master, w.n, w.k);
      cuda::mxfp8_columns(from.slice_cols(first, count), nullptr, 0, formats::Element::kE4M3, out,
                          c_.handle());
      return;
    }
  }
}

StatusOr<const cuda::GemmWeight*> CudaLinearBackward::expert_table(const ExpertLinear& linear) {
  const LinearWeight& any = linear.weights[0];
  if (any.format == WeightFormat::kBF16) return static_cast<const cuda::GemmWeight*>(linear.bf16_weights);
  const auto count = static_cast<int64_t>(linear.weights.size());
  const int64_t stride = any.n * any.k;
  ACCORD_ASSIGN_OR_RETURN(BF16* const bits, scratch_.get<BF16>(kWeight, count * stride));
  for (int64_t e = 0; e < count; ++e) {
    const int64_t parameter = linear.parameters[static_cast<size_t>(e)];
    if (has_original(parameter, any)) {
      ACCORD_RETURN_IF_ERROR(c_.stream.copy(bits + e * stride, c_.parameters.original(parameter),
                                            static_cast<size_t>(stride) * sizeof(BF16)));
    } else {
      make_weight(parameter, linear.weights[static_cast<size_t>(e)], 0, any.k, bits + e * stride);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(cuda::GemmWeight* const table, scratch_.get<cuda::GemmWeight>(kTable, count));
  if (table_of_ != bits || table_stride_ != stride || table_count_ != count) {
    std::vector<cuda::GemmWeight> entries(static_cast<size_t>(count));
    for (int64_t e = 0; e < count; ++e) entries[static_cast<size_t>(e)].data = bits + e * stride;
    ACCORD_RETURN_IF_ERROR(c_.stream.copy(table, entries.data(), entries.size() * sizeof(cuda::GemmWeight)));
    ACCORD_RETURN_IF_ERROR(c_.stream.synchronize());  // once for the sizes of a model
    table_of_ = bits;
    table_stride_ = stride;
    table_count_ = count;
  }
  return table;
}

// ---- operands in the frame ---------------------------------------------------------------------

void CudaLinearBackward::decode_rows(const BF16* x, int64_t rows, int64_t cols,
                                     const kernels::ActivationFormat& format, BF16* out) {
  const int64_t mark = frame_.mark();
  const int64_t most = code_rows(rows, cols);
  auto* const codes = frame_.take<uint8_t>(most * cols);
  auto* const scales = frame_.take<uint8_t>(most * (cols / formats::kNvfp4Block));
  auto* const outer = frame_.take<float>(most);
  formats::Nvfp4Options options;
  options.scope = formats::Nvfp4Scope::kToken;
  options.four_over_six = format.scaling.four_over_six;
  options.range = format.scaling.range;
  for (int64_t begin = 0; begin < rows; begin += most) {
    const int64_t count = std::min(most, rows - begin);
    const MatrixView from = view(x, rows, cols).slice_rows(begin, count);
    const MatrixView to = matrix_view(out, rows, cols).slice_rows(begin, count);
    if (format.format == WeightFormat::kMXFP8) {
      formats::cuda::quantize_mxfp8_rows(from, codes, scales, formats::Element::kE4M3, c_.handle());
      formats::cuda::dequantize_mxfp8_rows(codes, scales, formats::Element::kE4M3, to, c_.handle());
    } else {
      formats::cuda::quantize_nvfp4(from, options, {codes, scales, outer}, nullptr, nullptr, c_.handle());
      formats::cuda::dequantize_nvfp4(codes, scales, outer, options.scope, options.range, to, c_.handle());
    }
  }
  frame_.rewind(mark);
}

void CudaLinearBackward::quantize_in_place(BF16* dy, int64_t rows, int64_t cols, formats::Element element) {
  const int64_t mark = frame_.mark();
  const int64_t most = code_rows(rows, cols);
  auto* const codes = frame_.take<uint8_t>(most * cols);
  auto* const scales = frame_.take<uint8_t>(most * (cols / formats::kNvfp4Block));
  for (int64_t begin = 0; begin < rows; begin += most) {
    const MatrixView part = matrix_view(dy, rows, cols).slice_rows(begin, std::min(most, rows - begin));
    formats::cuda::quantize_mxfp8_rows(part, codes, scales, element, c_.handle());
    formats::cuda::dequantize_mxfp8_rows(codes, scales, element, part, c_.handle());
  }
  frame_.rewind(mark);
}

int64_t CudaLinearBackward::input_bytes(const LinearWeight& w, int64_t rows) const {
  return mode_of(w) == BackwardMode::kHighPrecision ? 0 : bf16_bytes(rows * w.k);
}

int64_t CudaLinearBackward::input_scratch(const LinearWeight& w, int64_t rows) const {
  return mode_of(w) == BackwardMode::kDequantized ? code_bytes(rows, w.k) : 0;
}

void CudaLinearBackward::make_input(const LinearWeight& w, const BF16* x, int64_t rows, Groups groups,
                                    BF16* out, SharedInput& shared) {
  shared = {w.activation_format(), x};
  switch (mode_of(w)) {
    case BackwardMode::kHighPrecision:
      return;
    case BackwardMode::kDequantized:
      decode_rows(x, rows, w.k, *shared.format, out);
      break;
    case BackwardMode::kQuantized:
      cuda::mxfp8_columns(view(x, rows, w.k), groups.offsets, groups.count, formats::Element::kE4M3, out,
                          c_.handle());
      break;
  }
  shared.values = out;
}

Status CudaLinearBackward::run_padded(const Linear& linear, const BF16* x, int64_t rows,
                                      CudaInputGradient dx) {
  LinearWeight w = *linear.weight;
  const int64_t outputs = w.n;
  const BF16* bits = c_.parameters.original(linear.parameter);
  if (!has_original(linear.parameter, w)) {
    ACCORD_ASSIGN_OR_RETURN(BF16* const made, scratch_.get<BF16>(kWeight, w.n * w.k));
    make_weight(linear.parameter, w, 0, w.k, made);
    bits = made;
  }
  w.n = padded(outputs);
  const auto matrix_bytes = static_cast<size_t>(w.n * w.k) * sizeof(BF16);
  ACCORD_ASSIGN_OR_RETURN(BF16* const dy, scratch_.get<BF16>(kPaddedDy, rows * w.n));
  ACCORD_ASSIGN_OR_RETURN(BF16* const wide, scratch_.get<BF16>(kPaddedWeight, w.n * w.k));
  ACCORD_ASSIGN_OR_RETURN(float* const gradient, scratch_.get<float>(kPaddedGradient, w.n * w.k));
  ACCORD_RETURN_IF_ERROR(c_.stream.fill(dy, 0, static_cast<size_t>(rows * w.n) * sizeof(BF16)));
  cuda::copy_columns(view(linear.dy, rows, outputs), {1, outputs, 0, 0, 0, 0}, nullptr,
                     matrix_view(dy, rows, w.n), c_.handle());
  ACCORD_RETURN_IF_ERROR(c_.stream.fill(wide, 0, matrix_bytes));
  ACCORD_RETURN_IF_ERROR(c_.stream.copy(wide, bits, static_cast<size_t>(outputs * w.k) * sizeof(BF16)));
  cuda::gemm_dgrad(dgrad(w, rows, dy, wide, dx), c_.handle());
  cuda::GemmBackward weights = wgrad(w, rows, dy, x, gradient);
  weights.c.accumulate = false;
  cuda::gemm_wgrad(weights, c_.handle());
  const MatrixView sum = matrix_view(c_.parameters.gradient(linear.parameter), outputs, w.k);
  cuda::add_rows(sum, matrix_view(gradient, outputs, w.k), sum, c_.handle());
  return absl::OkStatus();
}

// ---- linears of all rows -----------------------------------------------------------------------

int64_t CudaLinearBackward::weight_product_bytes(const Linear& linear, int64_t rows) const {
  const LinearWeight& w = *linear.weight;
  return mode_of(w) == BackwardMode::kQuantized ? bf16_bytes(rows * piece_of(rows, w.n)) : 0;
}

int64_t CudaLinearBackward::input_product_bytes(const Linear& linear, int64_t rows) const {
  const LinearWeight& w = *linear.weight;
  if (has_original(linear.parameter, w)) return 0;
  const bool pieces = mode_of(w) != BackwardMode::kHighPrecision;
  const int64_t weight = bf16_bytes(w.n * (pieces ? piece_of(w.n, w.k) : w.k));
  const int64_t codes = mode_of(w) == BackwardMode::kQuantized ? code_bytes(rows, w.n) : 0;
  return std::max(weight, codes);
}

// The input's operand stays until the last linear has used it.
int64_t CudaLinearBackward::frame_bytes(std::initializer_list<Linear> linears, int64_t rows) const {
  int64_t input = 0;
  for (const Linear& linear : linears) input = std::max(input, input_bytes(*linear.weight, rows));
  int64_t most = 0;
  for (const Linear& linear : linears) {
    const bool last = &linear == linears.end() - 1;
    most = std::max({most, input + input_scratch(*linear.weight, rows),
                     input + weight_product_bytes(linear, rows),
                     (last ? 0 : input) + input_product_bytes(linear, rows)});
  }
  return most;
}

// The weight's gradient, in pieces of its rows.
void CudaLinearBackward::weight_product(const Linear& linear, int64_t rows, const BF16* x) {
  const LinearWeight& w = *linear.weight;
  const bool quantized = mode_of(w) == BackwardMode::kQuantized;
  const int64_t most = quantized ? piece_of(rows, w.n) : w.n;
  const int64_t mark = frame_.mark();
  BF16* const columns = quantized ? frame_.take<BF16>(rows * most) : nullptr;
  float* const gradient = c_.parameters.gradient(linear.parameter);
  for (int64_t first = 0; first < w.n; first += most) {
    const int64_t count = std::min(most, w.n - first);
    if (quantized) {
      cuda::mxfp8_columns(view(linear.dy, rows, w.n).slice_cols(first, count), nullptr, 0,
                          element_of(linear.parameter), columns, c_.handle());
    }
    LinearWeight piece = w;
    piece.n = count;
    cuda::GemmBackward g = wgrad(piece, rows, quantized ? columns : linear.dy, x, gradient + first * w.k);
    if (linear.bf16_gradient != nullptr) g.c = {linear.bf16_gradient + first * w.k, w.k, true, false};
    cuda::gemm_wgrad(g, c_.handle());
  }
  frame_.rewind(mark);
}

// The input's gradient, in pieces of its columns.
Status CudaLinearBackward::input_product(const Linear& linear, int64_t rows, CudaInputGradient dx) {
  const LinearWeight& w = *linear.weight;
  if (mode_of(w) == BackwardMode::kQuantized) {
    quantize_in_place(linear.dy, rows, w.n, element_of(linear.parameter));
  }
  if (has_original(linear.parameter, w)) {
    cuda::gemm_dgrad(dgrad(w, rows, linear.dy, c_.parameters.original(linear.parameter), dx), c_.handle());
    return absl::OkStatus();
  }
  const int64_t most = mode_of(w) == BackwardMode::kHighPrecision ? w.k : piece_of(w.n, w.k);
  const int64_t mark = frame_.mark();
  BF16* const bits = frame_.take<BF16>(w.n * most);
  for (int64_t first = 0; first < w.k; first += most) {
    const int64_t count = std::min(most, w.k - first);
    make_weight(linear.parameter, w, first, count, bits);
    cuda::GemmBackward g = dgrad(w, rows, linear.dy, bits, dx);
    g.n = g.ldb = count;
    g.c.data = static_cast<std::byte*>(dx.data) + first * (dx.bf16 ? sizeof(BF16) : sizeof(float));
    cuda::gemm_dgrad(g, c_.handle());
  }
  frame_.rewind(mark);
  return absl::OkStatus();
}

// A weight's gradient reads dy before the input's consumes it.
Status CudaLinearBackward::run(std::initializer_list<Linear> linears, const BF16* x, int64_t rows,
                               CudaInputGradient dx) {
  if (rows == 0) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(frame_.begin(frame_bytes(linears, rows)));
  int64_t input_size = 0;
  for (const Linear& linear : linears) {
    input_size = std::max(input_size, input_bytes(*linear.weight, rows));
  }
  auto* const input_room = frame_.take<std::byte>(input_size);
  SharedInput input;
  for (const Linear& linear : linears) {
    const LinearWeight& w = *linear.weight;
    if (input.format != w.activation_format()) {
      make_input(w, x, rows, {}, reinterpret_cast<BF16*>(input_room), input);
    }
    if (w.n % kOutputs != 0) {  // no mode quantizes its gradient by columns: that needs multiples of 32
      ACCORD_RETURN_IF_ERROR(run_padded(linear, input.values, rows, dx));
    } else {
      weight_product(linear, rows, input.values);
      if (&linear == linears.end() - 1) frame_.rewind(0);
      ACCORD_RETURN_IF_ERROR(input_product(linear, rows, dx));
    }
    dx.accumulate = true;
  }
  return absl::OkStatus();
}

// ---- experts -----------------------------------------------------------------------------------

Status CudaLinearBackward::run_experts(std::initializer_list<ExpertLinear> linears, const BF16* x,
                                       const ExpertRows& rows, CudaInputGradient dx) {
  if (rows.rows == 0) return absl::OkStatus();
  const Groups groups{rows.offsets, rows.num_experts};
  // Rows that are gathered on the way into the product stay in the order of tokens, except where columns are
  // quantized: those need an expert's rows together.
  const bool gathers = rows.sorted_tokens != nullptr;
  SharedInput input;
  const int32_t* gather = nullptr;
  for (const ExpertLinear& linear : linears) {
    const LinearWeight& w = linear.weights[0];
    const bool quantized = mode_of(w) == BackwardMode::kQuantized;
    const int64_t input_rows = gathers && !quantized ? rows.tokens : rows.rows;
    ACCORD_RETURN_IF_ERROR(
        frame_.begin(std::max(quantized ? code_bytes(rows.rows, w.n) : 0, input_scratch(w, input_rows))));
    if (input.format != w.activation_format()) {
      const BF16* from = x;
      if (gathers && quantized) {
        ACCORD_ASSIGN_OR_RETURN(BF16* const sorted, scratch_.get<BF16>(kGathered, rows.rows * w.k));
        cuda::gather_rows(view(x, rows.tokens, w.k), rows.sorted_tokens, matrix_view(sorted, rows.rows, w.k),
                          c_.handle());
        from = sorted;
      }
      BF16* room = nullptr;
      if (input_bytes(w, input_rows) > 0) {
        ACCORD_ASSIGN_OR_RETURN(room, scratch_.get<BF16>(kInput, input_rows * w.k));
      }
      make_input(w, from, input_rows, groups, room, input);
      gather = quantized ? nullptr : rows.sorted_tokens;
    }
    const BF16* columns_dy = linear.dy;
    if (quantized) {
      ACCORD_ASSIGN_OR_RETURN(BF16* const columns, scratch_.get<BF16>(kColumnsDy, rows.rows * w.n));
      cuda::mxfp8_columns(view(linear.dy, rows.rows, w.n), groups.offsets, groups.count,
                          element_of(linear.parameters[0]), columns, c_.handle());
      columns_dy = columns;
    }
    cuda::GemmBackward weights = wgrad(w, rows.rows, columns_dy, input.values, nullptr);
    weights.num_experts = rows.num_experts;
    weights.offsets = rows.offsets;
    weights.b_gather = gather;
    weights.outputs = linear.gradients;
    cuda::gemm_wgrad(weights, c_.handle());

    if (quantized) quantize_in_place(linear.dy, rows.rows, w.n, element_of(linear.parameters[0]));
    cuda::GemmGroups tiles = rows.groups;
    ACCORD_ASSIGN_OR_RETURN(tiles.experts, expert_table(linear));
    tiles.gather = nullptr;
    cuda::GemmBackward inputs = dgrad(w, rows.rows, linear.dy, nullptr, dx);
    inputs.groups = &tiles;
    cuda::gemm_dgrad(inputs, c_.handle());
    dx.accumulate = true;
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
