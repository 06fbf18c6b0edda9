#pragma once
// y = x W^T for a weight as it lies in the arena (docs/contract.md, section 4).
//
//   format   operands                                     result from the fp32 sum `acc`
//   BF16     x as it is, W widened                        acc
//   MXFP8    decoded E4M3 blocks of x and W               acc
//   NVFP4    E2M1*E4M3 products of x (per token) and W    fl(fl(acc * fl(1/(36*R_x*R_W))) * fl(A_x * A_W))
// R_x and R_W are the ranges of the block scales, 448 but for four over six.
// Stored to y's dtype with one rounding. The sum's order is gemm.hpp's, so a row of y depends on its row of x
// and on W alone.
//
// Activations are turned into an Operand once and shared by the linears of one format (q, k, v; gate, up).
#include <cstdint>

#include "base/flow.hpp"
#include "device/tensor_view.hpp"
#include "kernels/linear/workspace.hpp"

namespace accord::kernels {

// How the activations of a linear are quantized.
struct ActivationFormat {
  WeightFormat format = WeightFormat::kBF16;
  Nvfp4Scaling scaling{};  // NVFP4
  bool operator==(const ActivationFormat&) const = default;
};

// A linear weight as it lies in the arena.
struct LinearWeight {
  WeightFormat format = WeightFormat::kBF16;
  int64_t n = 0;               // output features
  int64_t k = 0;               // contracted
  const void* data = nullptr;  // bf16 [N,K]; e4m3 [N,K]; packed e2m1 [N,K/2]
  const uint8_t* scales = nullptr;
  const float* outer = nullptr;
  Nvfp4Scaling scaling{};      // NVFP4
  Nvfp4Scaling activations{};  // NVFP4

  ActivationFormat activation_format() const { return {format, activations}; }
};

// fp32 rows of padded_k(k) values each, zero past k.
struct Operand {
  ActivationFormat format;
  int64_t m = 0;
  int64_t k = 0;
  const float* const* rows = nullptr;  // [m]
  const float* outer = nullptr;        // [m] the token's outer scale A (NVFP4)
};

// Where an operand's values lie. `values`: [m, padded_k(k)]; `outer`: [m], used for NVFP4 only.
struct OperandStorage {
  float* values = nullptr;
  float* outer = nullptr;
};

// Writes rows of x (bf16 or fp32, any stride) as operand values of `format`.
void make_operand_values(MatrixView x, const ActivationFormat& format, OperandStorage out,
                         Workspace& scratch);

// An operand over all rows of x, kept in scratch.operand*, valid until the next call with that workspace.
// fp32 rows that already have the right form are not copied: x must then stay as it is.
Operand make_operand(MatrixView x, const ActivationFormat& format, Workspace& scratch);

// y[:, n_begin:n_end] (bf16 or fp32); a.k == w.k, a.format == w.activation_format(), y.cols == w.n.
void linear_columns(const Operand& a, const LinearWeight& w, MatrixView y, int64_t n_begin, int64_t n_end,
                    Workspace& scratch);

// All columns, over the threads of `pool` when the product is large enough (null: this thread alone).
void linear(const Operand& a, const LinearWeight& w, MatrixView y, ThreadPool* pool, WorkspacePool& scratch);

}  // namespace accord::kernels
