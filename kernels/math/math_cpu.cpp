#include "kernels/math/exp_log.hpp"
#include "kernels/math/math.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {

float exp_f32(float x) { return exp_scalar(x); }
float log_f32(float x) { return log_scalar(x); }

void exp_rows(const float* x, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    store8(out + i, exp8(load8(x + i)));
  }
  if (i < count) {
    store_tail(out + i, exp8(load_tail(x + i, count - i)), count - i);
  }
}

}  // namespace accord::kernels
