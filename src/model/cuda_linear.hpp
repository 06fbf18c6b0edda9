#pragma once
// Linear layers on the device: kernels/linear/linear.hpp over the products of kernels/gemm/gemm_cuda.hpp.
// Activations become BF16 operand values that stand for what their quantizer stored exactly. For the model
// alone, and for the benchmark of a layer's memory.
#include <cstdint>
#include <functional>
#include <vector>

#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/stream.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/linear/linear.hpp"

namespace accord::model {

// Rows of BF16 operand values.
struct CudaOperand {
  kernels::ActivationFormat format;
  const BF16* values = nullptr;
  int64_t ld = 0;
  int64_t rows = 0;
  const float* outer = nullptr;  // [rows] (NVFP4)
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

  // Room for operands of up to `elements` values in `rows` rows.
  Status reserve(int64_t elements, int64_t rows);
  void addresses(std::vector<const void*>& out) const;

  // Each operand is valid until the next is made. BF16 operands are x itself.
  CudaOperand operand(MatrixView x, const kernels::ActivationFormat& format);
  // The operand of y = norm(x) or of y = silu(gate) * up, in one pass where the kernels can. y (BF16) is
  // written too when `keep`, or where the operand is y.
  CudaOperand norm_operand(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms,
                           const kernels::ActivationFormat& format, bool keep);
  CudaOperand swiglu_operand(MatrixView gate, MatrixView up, MatrixView y,
                             const kernels::ActivationFormat& format, bool keep);

  // y (bf16 or fp32) = a w^T.
  void linear(const CudaOperand& a, const kernels::LinearWeight& w, MatrixView y);
  // The same over sorted rows of experts of one shape and format: `any` is one of them.
  void grouped(const CudaOperand& a, const kernels::LinearWeight& any,
               const kernels::cuda::GemmGroups& groups, MatrixView y);

 private:
  CudaOperand expand(const kernels::ActivationFormat& format, int64_t rows, int64_t cols);
  kernels::cuda::GemmForward product(const CudaOperand& a, const kernels::LinearWeight& w,
                                     MatrixView y) const;

  const Device& device_;
  const Stream& stream_;
  DeviceBuffer codes_, scales_, outer_, values_;
};

}  // namespace accord::model
