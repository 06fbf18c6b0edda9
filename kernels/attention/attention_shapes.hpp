#pragma once
// Internal to kernels/attention: how attention on CUDA (attention_cuda.hpp) cuts its queries.
#include "kernels/attention/attention_cuda.hpp"

namespace accord::kernels::cuda::attention {

// Queries of a tile: rows times heads that share a key/value head.
constexpr int queries_of(const AttentionDims& d, bool few_rows) {
  if (few_rows || d.head_dim > 192) return 16;
  return d.head_dim == d.v_head_dim && (d.head_dim == 64 || d.head_dim == 128) ? 128 : 64;
}

constexpr int heads_per_tile(const AttentionDims& d, int queries) {
  const int group = d.num_heads / d.num_kv_heads;
  return group < queries ? group : queries;
}

// Rows of a tile of `queries`.
constexpr int rows_per_tile(const AttentionDims& d, int queries) {
  return queries / heads_per_tile(d, queries);
}

// Many rows, no partials: everywhere for head sizes up to 192, and on Hopper for 64/64 and 128/128.
void launch_rows(const AttentionForward& args, StreamHandle stream);
void launch_rows_sm90(const AttentionForward& args, StreamHandle stream);
// The backward's products on Hopper, for 64/64 and 128/128: of keys and values, which launches that of
// queries.
void launch_backward_sm90(const AttentionBackwardArgs& args, StreamHandle stream);
void launch_backward_queries_sm90(const AttentionBackwardArgs& args, StreamHandle stream);

}  // namespace accord::kernels::cuda::attention
