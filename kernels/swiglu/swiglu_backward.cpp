#include "kernels/swiglu/swiglu_backward.hpp"

#include "kernels/math/simd.hpp"

namespace accord::kernels {

namespace {

constexpr int64_t kLanes = 8;

struct Derivatives {
  F8 dgate, dup;
};

Derivatives derivatives(F8 gate, F8 up, F8 dact) {
  const F8 one = f8(1.0F);
  const F8 sigmoid = one / (one + exp8(f8_zero() - gate));
  const F8 slope = sigmoid * _mm256_fmadd_ps(gate, one - sigmoid, one);
  return {dact * up * slope, dact * (gate * sigmoid)};
}

template <class T>
void backward_rows(MatrixView gate_RI, MatrixView up_RI, const float* dact_RI, float* dgate_RI,
                   float* dup_RI) {
  const int64_t width = gate_RI.cols;
  const int64_t vector_end = width - width % kLanes;
  for (int64_t r = 0; r < gate_RI.rows; ++r) {
    const T* gate = gate_RI.row<T>(r);
    const T* up = up_RI.row<T>(r);
    const float* dact = dact_RI + r * width;
    float* dgate = dgate_RI + r * width;
    float* dup = dup_RI + r * width;
    for (int64_t i = 0; i < vector_end; i += kLanes) {
      const Derivatives d = derivatives(load8(gate + i), load8(up + i), load8(dact + i));
      store8(dgate + i, d.dgate);
      store8(dup + i, d.dup);
    }
    for (int64_t i = vector_end; i < width; ++i) {
      const Derivatives d = derivatives(f8(to_float(gate[i])), f8(to_float(up[i])), f8(dact[i]));
      dgate[i] = _mm256_cvtss_f32(d.dgate);
      dup[i] = _mm256_cvtss_f32(d.dup);
    }
  }
}

}  // namespace

void swiglu_backward(MatrixView gate_RI, MatrixView up_RI, const float* dact_RI, float* dgate_RI,
                     float* dup_RI) {
  if (gate_RI.dtype == Dtype::kBF16) {
    backward_rows<BF16>(gate_RI, up_RI, dact_RI, dgate_RI, dup_RI);
  } else {
    backward_rows<float>(gate_RI, up_RI, dact_RI, dgate_RI, dup_RI);
  }
}

}  // namespace accord::kernels
