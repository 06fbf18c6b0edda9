#pragma once
// Rows of the embedding table, and the residual addition: the two elementwise ops of the residual stream.
#include <cstdint>
#include <span>

#include "device/tensor_view.hpp"

namespace accord::kernels {

// y[t] = table[tokens[t]], table [V,H] bf16, y [T,H] bf16 or fp32. Ids must be in [0, V).
void embed_rows(const BF16* table, std::span<const int32_t> tokens, MatrixView y);

// y = T(x + delta), T the dtype of all three ([rows, cols], bf16 or fp32). y may be x.
void add_rows(MatrixView x, MatrixView delta, MatrixView y);

}  // namespace accord::kernels
