#include <cassert>

#include "kernels/math/simd.hpp"
#include "kernels/swiglu/swiglu.hpp"

namespace accord::kernels {
namespace {

F8 silu_times(F8 gate, F8 up) {
  const F8 minus = _mm256_xor_ps(gate, f8(-0.0F));
  return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(f8(1.0F), exp8(minus))), up);
}

template <class T>
void rows(MatrixView gate, MatrixView up, MatrixView y) {
  const int64_t n = gate.cols;
  for (int64_t r = 0; r < gate.rows; ++r) {
    const T* g = gate.row<T>(r);
    const T* u = up.row<T>(r);
    T* out = y.row<T>(r);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      store8(out + i, silu_times(load8(g + i), load8(u + i)));
    }
    if (i < n) {
      store_tail(out + i, silu_times(load_tail(g + i, n - i), load_tail(u + i, n - i)), n - i);
    }
  }
}

}  // namespace

void swiglu(MatrixView gate, MatrixView up, MatrixView y) {
  assert(gate.dtype == up.dtype && gate.dtype == y.dtype && gate.cols == up.cols && gate.cols == y.cols);
  if (gate.dtype == Dtype::kBF16) {
    rows<BF16>(gate, up, y);
  } else {
    rows<float>(gate, up, y);
  }
}

}  // namespace accord::kernels
