#pragma once
// Internal to kernels/attention: how attention on CUDA (attention_cuda.hpp) cuts its queries.
#include "kernels/attention/attention_cuda.hpp"

namespace accord::kernels::cuda::attention {

// Queries of a tile: rows times heads that share a key/value head.
constexpr int queries_of(const AttentionDims& d, bool few_rows) {
  return few_rows || d.head_dim > 192 ? 16 : 64;
}

constexpr int heads_per_tile(const AttentionDims& d, int queries) {
  const int group = d.num_heads / d.num_kv_heads;
  return group < queries ? group : queries;
}

}  // namespace accord::kernels::cuda::attention
