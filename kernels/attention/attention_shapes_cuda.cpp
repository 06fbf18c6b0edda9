// What attention on CUDA takes, and the sizes that its callers reserve: the host's side of
// attention_cuda.hpp.
#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_shapes.hpp"

namespace accord::kernels::cuda {

bool attention_takes(const AttentionDims& d) {
  constexpr struct {
    int32_t keys, values;
  } kSizes[] = {{16, 16}, {32, 32}, {48, 32}, {64, 64}, {128, 128}, {192, 128}, {576, 512}};
  const bool sizes = std::any_of(std::begin(kSizes), std::end(kSizes), [&](const auto& size) {
    return d.head_dim == size.keys && d.v_head_dim == size.values;
  });
  return sizes && d.num_kv_heads > 0 && d.num_heads % d.num_kv_heads == 0;
}

int32_t attention_tile_rows(const AttentionDims& d, bool few_rows) {
  return attention::rows_per_tile(d, attention::queries_of(d, few_rows));
}

int64_t attention_partials_bytes(const AttentionDims& d, int64_t num_rows, int32_t max_splits) {
  return num_rows * d.num_heads * max_splits * (d.v_head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

}  // namespace accord::kernels::cuda
