#pragma once
// Linear layers on the device: kernels/linear/linear.hpp over the products of kernels/gemm/gemm_cuda.hpp, for
// which activations become BF16 values that stand for what their quantizer stored exactly, or, where the
// device multiplies scaled blocks, over those (cuda_block_scaled.hpp). For the model
// alone, and for the benchmark of a layer's memory.
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/stream.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/linear/linear.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "model/cuda_block_scaled.hpp"
#include "model/forward.hpp"

namespace accord::model {

// Rows to multiply with: BF16 values, or, of a quantized format, what CudaLinears keeps until the next
// operand.
struct CudaOperand {
  kernels::ActivationFormat format;
  const BF16* values = nullptr;  // BF16
  int64_t ld = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

class CudaLinears {
 public:
  CudaLinears(const Device& device, const Stream& stream) : device_(device), stream_(stream) {}

  // Operands of many rows are made, and multiplied, in tiles of rows where the products of a tile still fill
  // the device: `outputs` of the narrowest. A row's results do not depend on the others, so this only saves
  // memory.
  static int64_t tile_rows(int64_t rows, int64_t outputs);
  // body(begin, count) for each tile.
  static void for_tiles(int64_t rows, int64_t outputs, const std::function<void(int64_t, int64_t)>& body);

  // Products of scaled blocks, where there are any; else null.
  void use(std::unique_ptr<CudaBlockScaled> block_scaled) { block_scaled_ = std::move(block_scaled); }
  const CudaBlockScaled* block_scaled() const { return block_scaled_.get(); }
  // The arena's bytes have changed.
  void weights_changed();

  // Room for operands of up to `elements` values in `rows` rows of up to `cols`, and for products of `sorted`
  // rows by `experts` experts.
  Status reserve(int64_t elements, int64_t rows, int64_t cols, int64_t sorted = 0, int64_t experts = 0);
  void addresses(std::vector<const void*>& out) const;

  // Each operand is valid until the next is made. BF16 operands are x itself.
  CudaOperand operand(MatrixView x, const kernels::ActivationFormat& format);
  // The operand of y = norm(x), or of the norm of x and a residual, or of y = silu(gate) * up, in one pass
  // where the kernels can. y (BF16) is written too when `keep`, or where the operand is y.
  CudaOperand norm_operand(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms,
                           const kernels::ActivationFormat& format, bool keep,
                           const kernels::cuda::Residual& residual = {});
  CudaOperand swiglu_operand(MatrixView gate, MatrixView up, MatrixView y,
                             const kernels::ActivationFormat& format, bool keep);

  // y (bf16 or fp32) = a w^T.
  void linear(const CudaOperand& a, const kernels::LinearWeight& w, MatrixView y);
  // Several such, whose weights take a's format: side by side where the kernels can.
  struct Output {
    const kernels::LinearWeight* weight;
    MatrixView y;
  };
  void linears(const CudaOperand& a, std::initializer_list<Output> outputs);
  // The same over the sorted rows of experts, whose weights of one kind have one shape and format. Before
  // the products of a layer, begin_experts. `fragments`: GemmForward::fragments.
  void begin_experts(std::span<const MlpWeights> experts, const ExpertRows& rows);
  struct ExpertOutput {
    kernels::LinearWeight MlpWeights::*part;
    kernels::cuda::GemmGroups groups;
    bool fragments;
    MatrixView y;
  };
  void grouped(const CudaOperand& a, std::span<const MlpWeights> experts,
               std::initializer_list<ExpertOutput> outputs);

 private:
  // `expanded`: the quantizer has filled values_ as well.
  CudaOperand stored(const kernels::ActivationFormat& format, int64_t rows, int64_t cols, bool expanded);
  // Where a quantizer puts the products' operand; null where products take what is stored.
  BF16* operand_values() const { return block_scaled_ == nullptr ? values_.as<BF16>() : nullptr; }
  void expand(const CudaOperand& a);
  QuantizedRows rows_of(const CudaOperand& a) const;
  kernels::cuda::GemmForward product(const CudaOperand& a, const kernels::LinearWeight& w, MatrixView y);

  const Device& device_;
  const Stream& stream_;
  DeviceBuffer codes_, scales_, outer_;  // the current quantized operand as its quantizer stored it
  DeviceBuffer values_;                  // the same as BF16
  bool has_values_ = false;
  bool has_tiles_ = false;
  bool has_expert_rows_ = false;
  std::unique_ptr<CudaBlockScaled> block_scaled_;
};

}  // namespace accord::model
