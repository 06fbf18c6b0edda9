#pragma once
// Rows between storage dtypes and fp32, for kernels that compute in fp32 buffers.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/tensor_view.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/math/convert.hpp"

namespace accord::emulation {

inline void widen_row(const BF16* x, int64_t count, float* out) { formats::decode_bf16_row(x, count, out); }
inline void widen_row(const float* x, int64_t count, float* out) { std::copy_n(x, count, out); }

inline void store_row(const float* x, int64_t count, BF16* out) { kernels::narrow(x, out, count); }
inline void store_row(const float* x, int64_t count, float* out) { std::copy_n(x, count, out); }

// y = x [y.rows, y.cols] contiguous, rounded once.
inline void store_rows(const float* x, const MatrixView& y) {
  for (int64_t r = 0; r < y.rows; ++r, x += y.cols) {
    if (y.dtype == Dtype::kBF16) {
      store_row(x, y.cols, y.row<BF16>(r));
    } else {
      store_row(x, y.cols, y.row<float>(r));
    }
  }
}

inline std::vector<float> floats(int64_t count) { return std::vector<float>(static_cast<size_t>(count)); }

}  // namespace accord::emulation
