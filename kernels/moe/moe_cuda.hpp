#pragma once
// moe.hpp on CUDA: the same bits and order, in stream order. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/moe/moe_order.hpp"

namespace accord::kernels::cuda {

// Entries of scratch that sort_by_expert needs.
int64_t sort_scratch(int64_t num_ids, int64_t experts);

// ids [num_ids] = [T*K], each in [0, experts), experts <= 1024; scratch [sort_scratch]. No host waits, no
// atomics.
void sort_by_expert(const int32_t* ids, int64_t num_ids, int64_t experts, int64_t k, ExpertOrder order,
                    int32_t* scratch, StreamHandle stream);

// y[row] = x[sorted_tokens[row]], bytes copied; rows of 16-byte multiples go fastest.
void gather_rows(MatrixView x, const int32_t* sorted_tokens, MatrixView y, StreamHandle stream);

// Rows [0, x.rows).
void combine_experts(MatrixView x, MatrixView down, const float* weights, const int32_t* slot_rows, int64_t k,
                     MatrixView y, StreamHandle stream);

}  // namespace accord::kernels::cuda
