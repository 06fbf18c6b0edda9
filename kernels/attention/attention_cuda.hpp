#pragma once
// attention.hpp on the GPU: one algorithm for paged decode, chunked prefill and packed training sequences,
// with equal bits in all three. BF16 queries, keys and values.
//
// Blocks of 64 keys, splits of 512 from position 0, merged in ascending order, as in attention.hpp, with
//   s_j   tensor-core chain over the head dimension (gemm/exact.hpp), times scale in fp32
//   l     fma(l, a, sum of p_j): lane t of four adds columns 8i + 2t and 8i + 2t + 1 of the block for i =
//   0..3, and for
//         i = 4..7; the two sums are added, then lanes (0,1) and (2,3), then those two
//   acc   fl(acc a), then the chain over the block's keys with bf16(p_j)
//   out   bf16(fl(ACC fl(1/L)) + 0);  lse = M + log(L)
// A key that a query does not see has p = 0, which changes no bit of its sums (unless its value is not
// finite). Whether the splits of one query run side by side (`partials`) or in turn does not change a bit
// either.
//
// Pointers are device memory; q, k, v, out rows are 16-byte aligned. Tiles and pages are copied there from
// the host: a kernel may not write them (cuda/overlap.cuh).
#include <cstdint>

#include "base/dtype.hpp"
#include "device/stream_handle.hpp"

namespace accord::kernels::cuda {

// Consecutive positions of one sequence: rows [row_begin, row_begin + num_rows) of the batch, the first at
// `first_position`; position p's key is row pages[page_begin + p / 16] + p % 16 of the cache. A segment is
// cut into tiles of at most attention_tile_rows() rows. Their order does not change a result; with the
// longest contexts first they end soonest.
struct AttentionTile {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;
  int32_t page_begin = 0;
};

// Query and key head size / value head size: 16/16, 32/32, 48/32, 64/64, 128/128, 192/128 (latent, plain),
// 576/512 (latent, absorbed: the values are the first columns of the keys). 48/32 has both latent forms: the
// absorbed one passes the keys as `v` too.
struct AttentionDims {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t v_head_dim = 0;
  float scale = 0.0F;
};
bool attention_takes(const AttentionDims& dims);

struct AttentionForward {
  AttentionDims dims;
  const BF16* q = nullptr;  // [T, heads * head_dim]
  int64_t q_stride = 0;
  const BF16* k = nullptr;  // [cache rows, kv heads * head_dim]
  int64_t k_stride = 0;
  const BF16* v = nullptr;  // 576/512: not read
  int64_t v_stride = 0;
  BF16* out = nullptr;  // [T, heads * v_head_dim]
  int64_t out_stride = 0;
  float* lse = nullptr;  // [T, heads]
  const int32_t* pages = nullptr;
  const AttentionTile* tiles = nullptr;
  int32_t num_tiles = 0;
  bool few_rows = false;  // tiles of one row (decode), or of few: a smaller tile of queries
  bool portable = false;  // without the instructions that one architecture alone has; the same bits
  // Splits side by side (with few_rows): `max_splits` covers the longest context, positions[T] on the device,
  // scratch of attention_partials_bytes; the call's tiles cover all rows [0, num_rows), as all of them are
  // merged. Else one block takes all splits of its queries in turn.
  int32_t max_splits = 1;
  const int32_t* positions = nullptr;
  int64_t num_rows = 0;  // T
  void* partials = nullptr;
};
int32_t attention_tile_rows(const AttentionDims& dims, bool few_rows);
int64_t attention_partials_bytes(const AttentionDims& dims, int64_t num_rows, int32_t max_splits);
void attention_forward(const AttentionForward& args, StreamHandle stream);

// Backward over packed whole sequences (attention_backward.hpp), from the forward's out and lse.
// Deterministic: every output has one owner, which adds key tiles (dq) or heads and query tiles (dk, dv) in
// ascending order.
struct AttentionBackwardTile {
  int32_t row_begin = 0;   // first row of the sequence
  int32_t num_rows = 0;    // its length
  int32_t tile_begin = 0;  // first row of this tile in the sequence, a multiple of 64
};
// The order of the tiles does not change a result; those with most rows after them first end soonest.

struct AttentionBackwardArgs {
  AttentionDims dims;       // those of the forward; any multiples of 64
  const BF16* q = nullptr;  // [T, heads * head_dim]
  int64_t q_stride = 0;
  const BF16* k = nullptr;  // [T, kv heads * head_dim]
  int64_t k_stride = 0;
  const BF16* v = nullptr;  // [T, kv heads * v_head_dim], may be columns of k
  int64_t v_stride = 0;
  const BF16* out = nullptr;  // [T, heads * v_head_dim]
  int64_t out_stride = 0;
  const BF16* dout = nullptr;  // likewise
  int64_t dout_stride = 0;
  const float* lse = nullptr;                    // [T, heads]
  float* delta = nullptr;                        // scratch [T, heads]
  float* dq = nullptr;                           // contiguous, overwritten: [T, heads * head_dim]
  float* dk = nullptr;                           // [T, kv heads * head_dim]
  float* dv = nullptr;                           // [T, kv heads * v_head_dim]
  int64_t num_rows = 0;                          // T
  const AttentionBackwardTile* tiles = nullptr;  // all of every sequence
  int32_t num_tiles = 0;
  bool portable = false;  // as in AttentionForward
};
void attention_backward(const AttentionBackwardArgs& args, StreamHandle stream);

}  // namespace accord::kernels::cuda
