#pragma once
// Large BF16 products on Hopper's asynchronous tensor cores (gemm_large_sm90.cu); the callers fall back to
// mma.sync kernels elsewhere. Not for other folders: gemm_cuda.hpp is the API.
#include <cstdint>

#include "base/weight_format.hpp"
#include "device/stream_handle.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/wide_rows.hpp"

namespace accord::kernels::cuda {

// C[m,n] (+)= sum over l of A(m,l) B(n,l). An operand lies along the contracted dimension, element (i,l) at
// i * ld + l, or across it, at l * ld + i.
struct LargeParams {
  const uint16_t* a;
  const uint16_t* b;
  void* c;
  int64_t lda, ldb, ldc;
  int32_t m, n, l;
  bool c_bf16, accumulate;
  int64_t a_batch, b_batch, c_batch;
  // Grouped by rows of C (forward, dgrad): lists of 128-row and of wide tiles; B per expert.
  const GroupTile* tiles;
  const int32_t* num_tiles;
  const GemmWeight* experts;
  // Grouped by l (wgrad): ranges of l per expert, C per expert.
  const int32_t* offsets;
  void* const* outputs;
  const int32_t* gather;  // rows of A along l (forward), or of B across l (wgrad)
  // Quantized B (forward; A along l): bytes as they lie.
  GemmWeight weight;
  const float* a_outer;
  float inverse;
};

enum class LargeForm { kForward, kDgrad, kWgrad };

// Whether this build and the calling thread's device have these kernels.
bool large_products_available();
void launch_large(LargeForm form, const LargeParams& p, int32_t row_tiles, int32_t depth,
                  StreamHandle stream);
// MXFP8 and NVFP4 weights; K % 32 == 0.
void launch_large_quantized(WeightFormat format, const LargeParams& p, int32_t row_tiles,
                            StreamHandle stream);

// Grouped by rows, from the list of wide tiles (gemm_experts.cuh): forward to BF16, K % 32 == 0 where
// quantized, and dgrad to fp32. ACROSS: weights lie across l.
template <WeightFormat F, bool ACROSS>
void launch_experts_of(const LargeParams& p, StreamHandle stream);
void launch_experts(WeightFormat format, const LargeParams& p, StreamHandle stream);
void launch_experts_dgrad(const LargeParams& p, StreamHandle stream);
// Whether they write C [m,n]: in whole vectors, which 32 bits count, as those of m rows of A.
bool wide_tiles_take(int64_t m, int64_t n, int64_t lda, const GemmOutput& c);

}  // namespace accord::kernels::cuda
