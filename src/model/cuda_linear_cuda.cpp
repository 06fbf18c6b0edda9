#include <algorithm>

#include "device/launch.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/swiglu/swiglu_cuda.hpp"
#include "model/cuda_linear.hpp"

namespace accord::model {

using kernels::ActivationFormat;
using kernels::LinearWeight;
namespace cuda = kernels::cuda;

namespace {

// Rows that the fused quantizers take: aligned to 16 bytes.
bool aligned(MatrixView x) { return x.stride % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0; }

bool is_quantized(const ActivationFormat& format) { return format.format != WeightFormat::kBF16; }

// A tile of so many rows has so many outputs that 128 tiles of 128 x 128 fill a device of 132
// multiprocessors.
constexpr int64_t kTileRows = 512;
constexpr int64_t kTileOutputs = 4096;

// Whether products of one operand may go into one gemm_forward_together.
bool side_by_side(const cuda::GemmForward& a, const cuda::GemmForward& b) {
  return a.format == b.format && a.b_range == b.b_range && a.c.bf16 == b.c.bf16;
}

}  // namespace

int64_t CudaLinears::tile_rows(int64_t rows, int64_t outputs) {
  return outputs < kTileOutputs ? rows : std::min(rows, kTileRows);
}

void CudaLinears::for_tiles(int64_t rows, int64_t outputs,
                            const std::function<void(int64_t, int64_t)>& body) {
  const int64_t most = tile_rows(rows, outputs);
  for (int64_t begin = 0; begin < rows; begin += most) body(begin, std::min(most, rows - begin));
}

void CudaLinears::weights_changed() {
  if (block_scaled_ != nullptr) block_scaled_->weights_changed();
}

Status CudaLinears::reserve(int64_t elements, int64_t rows, int64_t cols, int64_t sorted, int64_t experts) {
  const auto count = static_cast<size_t>(elements);
  size_t codes = count;
  if (block_scaled_ != nullptr) {  // which multiplies whole multiples of rows
    codes += static_cast<size_t>((kernels::block_scaled::kRowMultiple - 1) * cols);
    ACCORD_RETURN_IF_ERROR(block_scaled_->reserve(rows, sorted, experts));
  }
  ACCORD_RETURN_IF_ERROR(codes_.ensure(device_, codes));
  ACCORD_RETURN_IF_ERROR(scales_.ensure(device_, count / formats::kNvfp4Block));
  ACCORD_RETURN_IF_ERROR(outer_.ensure(device_, static_cast<size_t>(rows) * sizeof(float)));
  return values_.ensure(device_, count * sizeof(BF16));
}

void CudaLinears::addresses(std::vector<const void*>& out) const {
  for (const DeviceBuffer* b : {&codes_, &scales_, &outer_, &values_}) b->add_bounds(out);
}

CudaOperand CudaLinears::stored(const ActivationFormat& format, int64_t rows, int64_t cols, bool expanded) {
  has_values_ = expanded;
  has_tiles_ = false;
  has_expert_rows_ = false;
  return {format, nullptr, cols, rows, cols};
}

void CudaLinears::expand(const CudaOperand& a) {
  if (has_values_) return;
  has_values_ = true;
  if (a.format.format == WeightFormat::kMXFP8) {
    cuda::expand_mxfp8(codes_.as<uint8_t>(), scales_.as<uint8_t>(), a.rows, a.cols, /*column_wise=*/false,
                       /*e5m2=*/false, values_.as<BF16>(), a.cols, stream_.handle());
  } else {
    cuda::expand_nvfp4(codes_.as<uint8_t>(), scales_.as<uint8_t>(), nullptr, false, a.format.scaling.range,
                       a.rows, a.cols, values_.as<BF16>(), a.cols, stream_.handle());
  }
}

CudaOperand CudaLinears::operand(MatrixView x, const ActivationFormat& format) {
  if (!is_quantized(format)) {
    return {format, static_cast<const BF16*>(x.data), x.stride, x.rows, x.cols};
  }
  BF16* values = operand_values();
  if (format.format == WeightFormat::kMXFP8) {
    formats::cuda::quantize_mxfp8_rows(x, codes_.as<uint8_t>(), scales_.as<uint8_t>(),
                                       formats::Element::kE4M3, stream_.handle(), values);
  } else {
    if (!formats::cuda::fuses_operand(x)) values = nullptr;
    formats::Nvfp4Options options;
    options.scope = formats::Nvfp4Scope::kToken;
    options.four_over_six = format.scaling.four_over_six;
    options.range = format.scaling.range;
    formats::cuda::quantize_nvfp4(x, options,
                                  {codes_.as<uint8_t>(), scales_.as<uint8_t>(), outer_.as<float>()}, nullptr,
                                  nullptr, stream_.handle(), values);
  }
  return stored(format, x.rows, x.cols, values != nullptr);
}

CudaOperand CudaLinears::norm_operand(MatrixView x, const BF16* weight, float eps, MatrixView y,
                                      float* inv_rms, const ActivationFormat& format, bool keep,
                                      const cuda::Residual& residual) {
  const bool fuses = cuda::fuses_rows(x.cols) && aligned(x) && aligned(y) && aligned(residual.delta) &&
                     aligned(residual.sum);
  if (!is_quantized(format) || !fuses) {
    if (residual.delta.data != nullptr && !fuses) {
      cuda::add_rows(x, residual.delta, residual.sum, stream_.handle());
      cuda::rms_norm(residual.sum, weight, eps, y, inv_rms, stream_.handle());
    } else {
      cuda::rms_norm(x, weight, eps, y, inv_rms, stream_.handle(), residual);
    }
    return operand(y, format);
  }
  if (!keep) y.data = nullptr;
  if (format.format == WeightFormat::kMXFP8) {
    cuda::rms_norm_mxfp8(x, weight, eps, y, inv_rms, codes_.as<uint8_t>(), scales_.as<uint8_t>(),
                         stream_.handle(), operand_values(), residual);
  } else {
    cuda::rms_norm_nvfp4(
        x, weight, eps, y, inv_rms, {codes_.as<uint8_t>(), scales_.as<uint8_t>(), outer_.as<float>()},
        format.scaling.four_over_six, format.scaling.range, stream_.handle(), operand_values(), residual);
  }
  return stored(format, x.rows, x.cols, operand_values() != nullptr);
}

CudaOperand CudaLinears::swiglu_operand(MatrixView gate, MatrixView up, MatrixView y,
                                        const ActivationFormat& format, bool keep) {
  if (!is_quantized(format) || !cuda::fuses_rows(gate.cols) || !aligned(gate) || !aligned(up) ||
      !aligned(y)) {
    cuda::swiglu(gate, up, y, stream_.handle());
    return operand(y, format);
  }
  if (!keep) y.data = nullptr;
  if (format.format == WeightFormat::kMXFP8) {
    cuda::swiglu_mxfp8(gate, up, y, codes_.as<uint8_t>(), scales_.as<uint8_t>(), stream_.handle(),
                       operand_values());
  } else {
    cuda::swiglu_nvfp4(gate, up, y, {codes_.as<uint8_t>(), scales_.as<uint8_t>(), outer_.as<float>()},
                       format.scaling.four_over_six, format.scaling.range, stream_.handle(),
                       operand_values());
  }
  return stored(format, gate.rows, gate.cols, operand_values() != nullptr);
}

cuda::GemmForward CudaLinears::product(const CudaOperand& a, const LinearWeight& w, MatrixView y) {
  require(a.format == w.activation_format(), "a.format == w.activation_format()");
  const bool quantized = is_quantized(a.format);
  if (quantized) expand(a);
  cuda::GemmForward g;
  g.format = w.format;
  g.m = y.rows;
  g.n = w.n;
  g.k = w.k;
  g.a = quantized ? values_.as<BF16>() : a.values;
  g.lda = a.ld;
  g.a_outer = a.format.format == WeightFormat::kNVFP4 ? outer_.as<float>() : nullptr;
  g.a_range = w.activations.range;
  g.b_range = w.scaling.range;
  g.c = {y.data, y.stride, y.dtype == Dtype::kBF16, false};
  // An embedding, a norm or a quantizer of the rows, which came last or nearly so, lies behind any update.
  g.b_at_rest = true;
  return g;
}

QuantizedRows CudaLinears::rows_of(const CudaOperand& a) const {
  return {codes_.as<uint8_t>(), scales_.as<uint8_t>(), outer_.as<float>(), a.rows};
}

void CudaLinears::linear(const CudaOperand& a, const LinearWeight& w, MatrixView y) {
  if (block_scaled_ != nullptr && block_scaled_->takes(w, y.dtype)) {
    require(a.format == w.activation_format(), "a.format == w.activation_format()");
    const QuantizedRows x = rows_of(a);
    if (!has_tiles_) block_scaled_->prepare(x, w);
    has_tiles_ = true;
    block_scaled_->multiply(x, w, y);
    return;
  }
  cuda::GemmForward g = product(a, w, y);
  g.b = {w.data, w.scales, w.outer};
  cuda::gemm_forward(g, stream_.handle());
}

void CudaLinears::linears(const CudaOperand& a, std::initializer_list<Output> outputs) {
  std::vector<cuda::GemmForward> together;
  const auto flush = [&] {
    cuda::gemm_forward_together(together, stream_.handle());
    together.clear();
  };
  for (const auto& [w, y] : outputs) {
    if (block_scaled_ != nullptr && block_scaled_->takes(*w, y.dtype)) {
      linear(a, *w, y);
      continue;
    }
    cuda::GemmForward g = product(a, *w, y);
    g.b = {w->data, w->scales, w->outer};
    if (!together.empty() && !side_by_side(g, together.front())) flush();
    together.push_back(g);
  }
  flush();
}

void CudaLinears::begin_experts(std::span<const MlpWeights> experts, const ExpertRows& rows) {
  if (block_scaled_ == nullptr) return;
  const MlpWeights& any = experts[0];
  for (const LinearWeight* w : {&any.gate, &any.up, &any.down}) {
    if (block_scaled_->takes(*w, Dtype::kBF16)) return block_scaled_->begin_experts(rows);
  }
}

void CudaLinears::grouped(const CudaOperand& a, std::span<const MlpWeights> experts,
                          std::initializer_list<ExpertOutput> outputs) {
  std::vector<cuda::GemmForward> together;
  const auto flush = [&] {
    cuda::gemm_forward_together(together, stream_.handle());
    together.clear();
  };
  for (const ExpertOutput& output : outputs) {
    const LinearWeight& any = experts[0].*output.part;
    if (block_scaled_ != nullptr && block_scaled_->takes(any, output.y.dtype)) {
      require(a.format == any.activation_format(), "a.format == any.activation_format()");
      const QuantizedRows x = rows_of(a);
      const int32_t* const gather = output.groups.gather;
      if (!has_expert_rows_) block_scaled_->prepare_experts(x, gather, any);
      has_expert_rows_ = true;
      for (size_t e = 0; e < experts.size(); ++e) {
        block_scaled_->multiply_expert(x, gather, static_cast<int64_t>(e), experts[e].*output.part, output.y);
      }
      continue;
    }
    cuda::GemmForward g = product(a, any, output.y);
    g.groups = &output.groups;
    g.fragments = output.fragments;
    if (!together.empty() && !side_by_side(g, together.front())) flush();
    together.push_back(g);
  }
  flush();
}

}  // namespace accord::model
