#pragma once
// From tokens to expert order and back. R = T*K rows, sorted by expert, then by token.
#include <cstdint>
#include <span>

#include "device/tensor_view.hpp"
#include "kernels/moe/moe_order.hpp"

namespace accord::kernels {

// ids [T*K], each in [0, experts).
void sort_by_expert(std::span<const int32_t> ids, int64_t experts, int64_t k, ExpertOrder order);

// y[t] = T(x[t] + T(sum over slots s ascending of weights[t][s] * down[slot_rows[t][s]])), the sum fp32 by
// fused multiply-adds from slot 0 on, T the dtype of x, down and y. y may be x.
void combine_experts(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
                     int64_t row_begin, int64_t row_end, MatrixView y);

}  // namespace accord::kernels
