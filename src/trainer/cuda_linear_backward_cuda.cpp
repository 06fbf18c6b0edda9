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

enum Part : size_t {
  kWeight,
  kTable,
  kInput,
  kGathered,
  kRowsDy,
  kColumnsDy,
  kCodes,
  kScales,
  kOuter,
  kPaddedDy,
  kPaddedWeight,
  kPaddedGradient,
  kParts
};

constexpr int64_t kOutputs = 8;  // the products take multiples of it

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
    : c_(context), scratch_(context.device, kParts) {}

BackwardMode CudaLinearBackward::mode_of(const LinearWeight& weight) const {
  return weight.format == WeightFormat::kBF16 ? BackwardMode::kHighPrecision : c_.backward.mode;
}

formats::Element CudaLinearBackward::element_of(int64_t parameter) const {
  return c_.backward.e5m2(parameter) ? formats::Element::kE5M2 : formats::Element::kE4M3;
}

void CudaLinearBackward::make_weight(int64_t parameter, const LinearWeight& w, BF16* out) {
  const BF16* original = c_.parameters.original(parameter);
  const MatrixView to = matrix_view(out, w.n, w.k);
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  switch (mode_of(w)) {
    case BackwardMode::kHighPrecision:
      cuda::round_to_bf16(c_.parameters.master(parameter), w.n * w.k, out, c_.handle());
      return;
    case BackwardMode::kDequantized:
      if (w.format == WeightFormat::kMXFP8) {
        formats::cuda::dequantize_mxfp8_rows(bytes, w.scales, formats::Element::kE4M3, to, c_.handle());
      } else {
        formats::cuda::dequantize_nvfp4(bytes, w.scales, w.outer, formats::Nvfp4Scope::kTensor,
                                        w.scaling.range, to, c_.handle());
      }
      return;
    case BackwardMode::kQuantized: {
      auto* const master = const_cast<float*>(c_.parameters.master(parameter));
      const MatrixView from = original != nullptr ? view(original, w.n, w.k) : matrix_view(master, w.n, w.k);
      cuda::mxfp8_columns(from, nullptr, 0, formats::Element::kE4M3, out, c_.handle());
      return;
    }
  }
}

StatusOr<const BF16*> CudaLinearBackward::weight(int64_t parameter, const LinearWeight& w) {
  const BF16* original = c_.parameters.original(parameter);
  if (mode_of(w) == BackwardMode::kHighPrecision && original != nullptr) return original;
  ACCORD_ASSIGN_OR_RETURN(BF16* const out, scratch_.get<BF16>(kWeight, w.n * w.k));
  make_weight(parameter, w, out);
  return out;
}

StatusOr<const cuda::GemmWeight*> CudaLinearBackward::expert_table(const ExpertLinear& linear) {
  const LinearWeight& any = linear.weights[0];
  if (any.format == WeightFormat::kBF16) return static_cast<const cuda::GemmWeight*>(linear.bf16_weights);
  const auto count = static_cast<int64_t>(linear.weights.size());
  const int64_t stride = any.n * any.k;
  ACCORD_ASSIGN_OR_RETURN(BF16* const bits, scratch_.get<BF16>(kWeight, count * stride));
  for (int64_t e = 0; e < count; ++e) {
    const int64_t parameter = linear.parameters[static_cast<size_t>(e)];
    const BF16* original = c_.parameters.original(parameter);
    if (mode_of(any) == BackwardMode::kHighPrecision && original != nullptr) {
      ACCORD_RETURN_IF_ERROR(
          c_.stream.copy(bits + e * stride, original, static_cast<size_t>(stride) * sizeof(BF16)));
    } else {
      make_weight(parameter, linear.weights[static_cast<size_t>(e)], bits + e * stride);
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

StatusOr<const BF16*> CudaLinearBackward::decoded_rows(const BF16* x, int64_t rows, int64_t cols,
                                                       const kernels::ActivationFormat& format, size_t part) {
  ACCORD_ASSIGN_OR_RETURN(uint8_t* const codes, scratch_.get<uint8_t>(kCodes, rows * cols));
  ACCORD_ASSIGN_OR_RETURN(uint8_t* const scales, scratch_.get<uint8_t>(kScales, rows * (cols / 16)));
  ACCORD_ASSIGN_OR_RETURN(BF16* const out, scratch_.get<BF16>(part, rows * cols));
  const MatrixView to = matrix_view(out, rows, cols);
  if (format.format == WeightFormat::kMXFP8) {
    formats::cuda::quantize_mxfp8_rows(view(x, rows, cols), codes, scales, formats::Element::kE4M3,
                                       c_.handle());
    formats::cuda::dequantize_mxfp8_rows(codes, scales, formats::Element::kE4M3, to, c_.handle());
    return out;
  }
  ACCORD_ASSIGN_OR_RETURN(float* const outer, scratch_.get<float>(kOuter, rows));
  formats::Nvfp4Options options;
  options.scope = formats::Nvfp4Scope::kToken;
  options.four_over_six = format.scaling.four_over_six;
  options.range = format.scaling.range;
  formats::cuda::quantize_nvfp4(view(x, rows, cols), options, {codes, scales, outer}, nullptr, nullptr,
                                c_.handle());
  formats::cuda::dequantize_nvfp4(codes, scales, outer, options.scope, options.range, to, c_.handle());
  return out;
}

StatusOr<const BF16*> CudaLinearBackward::quantized_rows(const BF16* dy, int64_t rows, int64_t cols,
                                                         formats::Element element) {
  ACCORD_ASSIGN_OR_RETURN(uint8_t* const codes, scratch_.get<uint8_t>(kCodes, rows * cols));
  ACCORD_ASSIGN_OR_RETURN(uint8_t* const scales, scratch_.get<uint8_t>(kScales, rows * (cols / 16)));
  ACCORD_ASSIGN_OR_RETURN(BF16* const out, scratch_.get<BF16>(kRowsDy, rows * cols));
  formats::cuda::quantize_mxfp8_rows(view(dy, rows, cols), codes, scales, element, c_.handle());
  formats::cuda::dequantize_mxfp8_rows(codes, scales, element, matrix_view(out, rows, cols), c_.handle());
  return out;
}

StatusOr<const BF16*> CudaLinearBackward::quantized_columns(const BF16* x, int64_t rows, int64_t cols,
                                                            Groups groups, formats::Element element,
                                                            size_t part) {
  ACCORD_ASSIGN_OR_RETURN(BF16* const out, scratch_.get<BF16>(part, rows * cols));
  cuda::mxfp8_columns(view(x, rows, cols), groups.offsets, groups.count, element, out, c_.handle());
  return out;
}

// Rows that are gathered on the way into the product stay in the order of tokens, except where columns are
// quantized: those need an expert's rows together.
Status CudaLinearBackward::make_input(const LinearWeight& w, const BF16* x, int64_t rows, Groups groups,
                                      const int32_t* gather, int64_t gathered_rows, SharedInput& shared) {
  const kernels::ActivationFormat format = w.activation_format();
  if (shared.format == format) return absl::OkStatus();
  shared = {format, x, gather};
  switch (mode_of(w)) {
    case BackwardMode::kHighPrecision:
      return absl::OkStatus();
    case BackwardMode::kDequantized: {
      ACCORD_ASSIGN_OR_RETURN(shared.values, decoded_rows(x, rows, w.k, format, kInput));
      return absl::OkStatus();
    }
    case BackwardMode::kQuantized: {
      const BF16* sorted = x;
      if (gather != nullptr) {
        ACCORD_ASSIGN_OR_RETURN(BF16* const out, scratch_.get<BF16>(kGathered, gathered_rows * w.k));
        cuda::gather_rows(view(x, rows, w.k), gather, matrix_view(out, gathered_rows, w.k), c_.handle());
        sorted = out;
      }
      shared.gather = nullptr;
      ACCORD_ASSIGN_OR_RETURN(shared.values,
                              quantized_columns(sorted, gather != nullptr ? gathered_rows : rows, w.k, groups,
                                                formats::Element::kE4M3, kInput));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

Status CudaLinearBackward::run_padded(const Linear& linear, const BF16* x, int64_t rows,
                                      CudaInputGradient dx) {
  LinearWeight w = *linear.weight;
  const int64_t outputs = w.n;
  ACCORD_ASSIGN_OR_RETURN(const BF16* const bits, weight(linear.parameter, w));
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

Status CudaLinearBackward::run(std::initializer_list<Linear> linears, const BF16* x, int64_t rows,
                               CudaInputGradient dx) {
  if (rows == 0) return absl::OkStatus();
  SharedInput input;
  for (const Linear& linear : linears) {
    const LinearWeight& w = *linear.weight;
    if (w.n % kOutputs != 0) {  // no mode quantizes its gradient by columns: that needs multiples of 32
      ACCORD_RETURN_IF_ERROR(make_input(w, x, rows, {}, nullptr, 0, input));
      ACCORD_RETURN_IF_ERROR(run_padded(linear, input.values, rows, dx));
      dx.accumulate = true;
      continue;
    }
    const BF16* rows_dy = linear.dy;
    const BF16* columns_dy = linear.dy;
    if (mode_of(w) == BackwardMode::kQuantized) {
      const formats::Element element = element_of(linear.parameter);
      ACCORD_ASSIGN_OR_RETURN(rows_dy, quantized_rows(linear.dy, rows, w.n, element));
      ACCORD_ASSIGN_OR_RETURN(columns_dy, quantized_columns(linear.dy, rows, w.n, {}, element, kColumnsDy));
    }
    ACCORD_ASSIGN_OR_RETURN(const BF16* const bits, weight(linear.parameter, w));
    cuda::gemm_dgrad(dgrad(w, rows, rows_dy, bits, dx), c_.handle());
    dx.accumulate = true;
    ACCORD_RETURN_IF_ERROR(make_input(w, x, rows, {}, nullptr, 0, input));
    cuda::gemm_wgrad(wgrad(w, rows, columns_dy, input.values, c_.parameters.gradient(linear.parameter)),
                     c_.handle());
  }
  return absl::OkStatus();
}

Status CudaLinearBackward::run_experts(std::initializer_list<ExpertLinear> linears, const BF16* x,
                                       const ExpertRows& rows, CudaInputGradient dx) {
  if (rows.rows == 0) return absl::OkStatus();
  const Groups groups{rows.offsets, rows.num_experts};
  const int64_t input_rows = rows.sorted_tokens != nullptr ? rows.tokens : rows.rows;
  SharedInput input;
  for (const ExpertLinear& linear : linears) {
    const LinearWeight& w = linear.weights[0];
    const BF16* rows_dy = linear.dy;
    const BF16* columns_dy = linear.dy;
    if (mode_of(w) == BackwardMode::kQuantized) {
      const formats::Element element = element_of(linear.parameters[0]);
      ACCORD_ASSIGN_OR_RETURN(rows_dy, quantized_rows(linear.dy, rows.rows, w.n, element));
      ACCORD_ASSIGN_OR_RETURN(columns_dy,
                              quantized_columns(linear.dy, rows.rows, w.n, groups, element, kColumnsDy));
    }
    cuda::GemmGroups tiles = rows.groups;
    ACCORD_ASSIGN_OR_RETURN(tiles.experts, expert_table(linear));
    tiles.gather = nullptr;
    cuda::GemmBackward inputs = dgrad(w, rows.rows, rows_dy, nullptr, dx);
    inputs.groups = &tiles;
    cuda::gemm_dgrad(inputs, c_.handle());
    dx.accumulate = true;
    ACCORD_RETURN_IF_ERROR(make_input(w, x, input_rows, groups, rows.sorted_tokens, rows.rows, input));
    cuda::GemmBackward weights = wgrad(w, rows.rows, columns_dy, input.values, nullptr);
    weights.num_experts = rows.num_experts;
    weights.offsets = rows.offsets;
    weights.b_gather = input.gather;
    weights.outputs = linear.gradients;
    cuda::gemm_wgrad(weights, c_.handle());
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
