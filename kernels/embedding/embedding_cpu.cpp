#include <cassert>
#include <cstring>

#include "kernels/embedding/embedding.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {
namespace {

template <class T>
void add(MatrixView x, MatrixView delta, MatrixView y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const T* a = x.row<T>(r);
    const T* b = delta.row<T>(r);
    T* out = y.row<T>(r);
    int64_t i = 0;
    for (; i + 8 <= x.cols; i += 8) {
      store8(out + i, _mm256_add_ps(load8(a + i), load8(b + i)));
    }
    for (; i < x.cols; ++i) {
      out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
    }
  }
}

}  // namespace

void embed_rows(const BF16* table, std::span<const int32_t> tokens, MatrixView y) {
  for (size_t t = 0; t < tokens.size(); ++t) {
    const BF16* row = table + static_cast<int64_t>(tokens[t]) * y.cols;
    const auto r = static_cast<int64_t>(t);
    if (y.dtype == Dtype::kBF16) {
      std::memcpy(y.row<BF16>(r), row, static_cast<size_t>(y.cols) * sizeof(BF16));
    } else {
      formats::decode_bf16_row(row, y.cols, y.row<float>(r));
    }
  }
}

void add_rows(MatrixView x, MatrixView delta, MatrixView y) {
  assert(x.dtype == delta.dtype && x.dtype == y.dtype && x.cols == delta.cols && x.cols == y.cols);
  if (x.dtype == Dtype::kBF16) {
    add<BF16>(x, delta, y);
  } else {
    add<float>(x, delta, y);
  }
}

}  // namespace accord::kernels
