#include "kernels/math/convert.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {

void narrow(const float* x, BF16* out, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    store8(out + i, load8(x + i));
  }
  for (; i < count; ++i) {
    out[i] = to_bf16(x[i]);
  }
}

}  // namespace accord::kernels
