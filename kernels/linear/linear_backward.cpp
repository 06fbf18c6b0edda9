#include "kernels/linear/linear_backward.hpp"

#include <cstring>

namespace accord::kernels {

void widen(MatrixView in, float* out) {
  for (int64_t r = 0; r < in.rows; ++r, out += in.cols) {
    if (in.dtype == Dtype::kF32) {
      std::memcpy(out, in.row<float>(r), static_cast<size_t>(in.cols) * sizeof(float));
    } else {
      const BF16* x = in.row<BF16>(r);
      for (int64_t c = 0; c < in.cols; ++c) out[c] = to_float(x[c]);
    }
  }
}

void round_to_bf16(const float* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t u = std::bit_cast<uint32_t>(in[i]);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const uint32_t quiet = u | 0x400000u;  // what to_bf16 makes of a NaN
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    out[i] = std::bit_cast<float>((is_nan ? quiet : rounded) & 0xffff0000u);
  }
}

}  // namespace accord::kernels
