#pragma once
// adamw.hpp on CUDA, in stream order, and what an optimizer step asks of its gradients. All pointers are the
// device's, any alignment. The update is fused with the start of the weights' export (docs/contract.md,
// section 3). Gradients are read alone.
#include <cstdint>

#include "base/dtype.hpp"
#include "base/export_counts.hpp"
#include "device/stream_handle.hpp"
#include "kernels/adamw/adamw.hpp"
#include "kernels/formats/health.hpp"

namespace accord::kernels::cuda {

// Plain, over `count` elements.
void adamw(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, int64_t count,
           const AdamwFactors& factors, StreamHandle stream);

// The export of one tensor [rows, cols] in the pass that updates it.
struct AdamwExport {
  int64_t rows = 0;
  int64_t cols = 0;
  // One of: bf16(master) of every element; or MXFP8 (E4M3, blocks of 32 along the row) of bf16(master), cols
  // % 32 == 0; or neither (NVFP4, whose outer scale is known only afterwards).
  BF16* bf16 = nullptr;
  uint8_t* mxfp8 = nullptr;
  uint8_t* mxfp8_scales = nullptr;
  // *counts gets what was seen of the new masters, besides what it has: an integer maximum and integer sums,
  // which have no order. `flushed` counts what BF16 made zero and, with MXFP8, what that made zero besides;
  // `saturated` is MXFP8's. Null: nothing is counted.
  ExportCounts* counts = nullptr;
};
void adamw_export(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq,
                  const AdamwExport& exported, const AdamwFactors& factors, StreamHandle stream);

// *result = sum of squares in double, over fixed blocks in order (scratch: squares_scratch(count) doubles).
int64_t squares_scratch(int64_t count);
void sum_of_squares(const float* x, int64_t count, double* result, double* scratch, StreamHandle stream);

// *first = the least index in [0, count) whose value is not finite, or `count`.
void first_non_finite(const float* x, int64_t count, int64_t* first, StreamHandle stream);

// *bits = max over x of the bits of |x| (weights/quantize.hpp max_abs_bits); not accumulated.
void max_abs_bits(const float* x, int64_t count, uint32_t* bits, StreamHandle stream);

// *count_out = masters that are not zero and that BF16 rounds to zero.
void flushed_by_bf16(const float* x, int64_t count, int64_t* count_out, StreamHandle stream);

// sum[i] = ((0 + part_0[i]) + part_1[i]) + ... over the parts that reach so far, i < count of the longest.
// `sum` may be one of the parts.
struct OrderedParts {
  static constexpr int kMost = 64;
  int num = 0;
  const float* data[kMost] = {};
  int64_t count[kMost] = {};
};
void sum_in_order(const OrderedParts& parts, float* sum, StreamHandle stream);

}  // namespace accord::kernels::cuda
