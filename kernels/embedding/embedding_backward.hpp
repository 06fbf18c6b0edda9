#pragma once
// Backward of the embedding lookup x[t] = table[tokens[t]]: dtable[tokens[t]] += dx[t], rows in ascending
// order. Columns are independent, so callers split the work by column range and the order of the sums never
// changes.
#include <cstdint>
#include <span>

namespace accord::kernels {

// dx_TH and dtable_VH contiguous fp32; only columns [column_begin, column_end) are touched.
void embedding_backward(std::span<const int32_t> tokens, const float* dx_TH, int64_t hidden,
                        int64_t column_begin, int64_t column_end, float* dtable_VH);

}  // namespace accord::kernels
