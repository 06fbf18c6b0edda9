#pragma once
// The absorbed products of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). kv_b_proj holds,
// per head h, `nope` rows W_UK and then `v` rows W_UV of `latent` columns. The plain form expands a cached
// latent c into the key W_UK c and the value W_UV c; since q . (W_UK c) = (W_UK^T q) . c, the absorbed form
// multiplies the query and the attention's output instead, and every head attends to c itself:
//   q_latent[h][j] = sum over d of q[h][d] W_UK[h][d][j]     one fused multiply-add per d, ascending, from +0
//   out[h][d]      = sum over j of W_UV[h][d][j] o[h][j]     sixteen-lane order (gemm.hpp)
// each rounded once. kv_b_proj is BF16: quantized blocks lie along j alone.
#include <cstdint>

#include "device/tensor_view.hpp"
#include "kernels/linear/workspace.hpp"

namespace accord::kernels {

struct LatentHeads {
  int64_t nope = 0;    // a multiple of 8
  int64_t rope = 0;    // a multiple of 8
  int64_t v = 0;       // a multiple of 8
  int64_t latent = 0;  // a multiple of 16
};

// q [T, heads * (nope + rope)] -> the first `latent` columns of each head of q_latent [T, heads * (latent +
// rope)]; heads [head_begin, head_end). bf16 or fp32, both alike.
void absorb_queries(MatrixView q, const BF16* kv_b, const LatentHeads& shape, int64_t head_begin,
                    int64_t head_end, MatrixView q_latent, Workspace& scratch);

// latent [T, heads * latent] -> out [T, heads * v].
void expand_outputs(MatrixView latent, const BF16* kv_b, const LatentHeads& shape, int64_t head_begin,
                    int64_t head_end, MatrixView out, Workspace& scratch);

}  // namespace accord::kernels
