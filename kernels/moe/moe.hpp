#pragma once
// From tokens to expert order and back. R = T*K rows, sorted by expert, then by token.
#include <cstdint>
#include <span>

#include "device/tensor_view.hpp"

namespace accord::kernels {

// Everything has R entries, but for expert_offsets [E+1].
struct ExpertOrder {
  int32_t* expert_offsets = nullptr;  // first sorted row of each expert
  int32_t* sorted_tokens = nullptr;   // token of each sorted row
  int32_t* sorted_slots = nullptr;    // its slot 0..K-1 in the token's top-k
  int32_t* slot_rows = nullptr;       // [T,K] the sorted row of each (token, slot)
};

// ids [T*K], each in [0, experts).
void sort_by_expert(std::span<const int32_t> ids, int64_t experts, int64_t k, ExpertOrder order);

// y[t] = T(x[t] + T(sum over slots s ascending of weights[t][s] * down[slot_rows[t][s]])), the sum fp32 by
// fused multiply-adds from slot 0 on, T the dtype of x, down and y. y may be x.
void combine_experts(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
                     int64_t row_begin, int64_t row_end, MatrixView y);

}  // namespace accord::kernels
