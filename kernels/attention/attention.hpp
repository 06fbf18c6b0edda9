#pragma once
// Causal attention with grouped key/value heads over a paged cache: one function for prefill, decode and
// packed training sequences.
//
// For the query at position p of a sequence and one head (d = head_dim, fp32 throughout):
//   s_j = (q . k_j) * fl(1/sqrt(d))        j = 0..p, dot in sixteen-lane order (gemm.hpp); or another scale
// The context is cut at absolute positions 0, 512, 1024, ... into splits, each split into blocks of 64. In a
// split, from (m, l, acc) = (-inf, 0, 0), block after block:
//   m' = max(m, max_j s_j);  a = exp(m - m');  p_j = exp(s_j - m')
//   l  = l a + sum_j p_j (sixteen-lane order);  acc = acc a, then acc += p_j v_j for ascending j (fused)
// Splits are merged in ascending order into (M, L, ACC), likewise from (-inf, 0, 0):
//   M' = max(M, m);  A = exp(M - M');  B = exp(m - M');  L = L A + l B;  ACC = ACC A + acc B
//   out = ACC * (1 / L), rounded once;  lse = M + log(L)
// Keys after p are never touched, so a result depends on positions 0..p of its sequence alone: not on pages,
// chunking, or what else is in the batch.
#include <cstdint>

#include "device/tensor_view.hpp"
#include "kernels/linear/workspace.hpp"

namespace accord::kernels {

inline constexpr int32_t kPageSize = 16;
inline constexpr int64_t kAttentionSplit = 512;
inline constexpr int64_t kAttentionBlock = 64;

// Rows [row_begin, row_begin + num_rows) of the batch are consecutive positions of one sequence,
// starting at `first_position`. Position p of the sequence lies at row
// pages[p / page_size] + p % page_size of the KV cache. pages[i] is a ROW offset, so that a packed training
// sequence (pages[i] = start + i * page_size) and a paged one look the same.
struct Segment {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;
  const int32_t* pages = nullptr;  // at least ceil((first_position + num_rows) / page_size) entries
};

// Keys and values of one layer, compute dtype, [rows, kv_heads * head_dim] and [rows, kv_heads * v_head_dim].
// The values may be columns of the keys.
struct KvLayer {
  MatrixView k;
  MatrixView v;
};

struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;    // of queries and keys; a multiple of 8
  int64_t v_head_dim = 0;  // of values and outputs, likewise; 0: head_dim
  float scale = 0.0F;      // 0: fl(1/sqrt(head_dim))
};

// Batch rows [row_begin, row_end) of `segment`, which lie inside it, and all heads of one kv head.
// q: [T, heads * head_dim], out: [T, heads * v_head_dim], the dtype of the cache; lse: [T, heads].
void attention(MatrixView q, const KvLayer& kv, const Segment& segment, int64_t row_begin, int64_t row_end,
               int64_t kv_head, const AttentionShape& shape, MatrixView out, float* lse, Workspace& scratch);

}  // namespace accord::kernels
