#include "kernels/embedding/embedding_backward.hpp"

namespace accord::kernels {

void embedding_backward(std::span<const int32_t> tokens, const float* dx_TH, int64_t hidden,
                        int64_t column_begin, int64_t column_end, float* dtable_VH) {
  for (size_t t = 0; t < tokens.size(); ++t) {
    const float* dx = dx_TH + static_cast<int64_t>(t) * hidden;
    float* dtable = dtable_VH + tokens[t] * hidden;
    for (int64_t h = column_begin; h < column_end; ++h) dtable[h] += dx[h];
  }
}

}  // namespace accord::kernels
