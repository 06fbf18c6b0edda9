#pragma once
// What cuBLASLt multiplies: y[M,N] = x[M,K] w[N,K]^T over blocks of K that have a scale each
// (docs/contract.md, section 4), as column-major matrices, which is how it sees row-major ones:
//
//   A = w, transposed      K x N, leading dimension K      e4m3, or two e2m1 to a byte
//   B = x                  K x M, leading dimension K      the same type
//   C = D = y              N x M, leading dimension N      fp32 sums, or bf16
//
//   format   block   scales   D
//   MXFP8    32      UE8M0    bf16
//   NVFP4    16      UE4M3    fp32, times alpha = fl(1/(36 R_x R_w)); the outer scales A_x(row) A_w follow in
//                             a pass of our own (block_scaled_cuda.hpp)
//
// Scales lie in tiles of 128 rows and four blocks (formats/swizzle.hpp), rows of tiles filled up with zeros.
// Rows of x are multiplied in multiples of 128, so that one algorithm, chosen once for (format, N, K), serves
// every M; what rows past M give is not kept.
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/weight_format.hpp"

namespace accord::kernels::block_scaled {

constexpr int64_t kRowMultiple = 128;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kAlignment = 16;  // of every operand, in bytes

struct ProductShape {
  WeightFormat format = WeightFormat::kMXFP8;
  int64_t n = 0;
  int64_t k = 0;
  auto operator<=>(const ProductShape&) const = default;  // NOLINT: its 0 is no pointer
};

// Whether the product is one of these: MXFP8 or NVFP4; N % 16 == 0 and K % 32 == 0, so that rows of every
// operand are aligned to 16 bytes.
bool takes(const ProductShape& shape);

constexpr int64_t padded_rows(int64_t rows) {
  return (rows + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}
int64_t block_of(WeightFormat format);         // 32 or 16
int64_t row_bytes(const ProductShape& shape);  // of x and w
int64_t scales_per_row(const ProductShape& shape);
// Bytes of the scale tiles of `rows` rows.
int64_t tile_bytes(const ProductShape& shape, int64_t rows);

// Rows of one call where sums need a pass of their own: their fp32 values stay within kSumsBytes.
constexpr int64_t kSumsBytes = int64_t{64} << 20;
int64_t rows_per_call(int64_t n);

// fl(1/(36 R_x R_w)).
float products_inverse(int32_t x_range, int32_t w_range);

// "mxfp8 4096x2048": for messages and the arithmetic's name.
std::string to_string(const ProductShape& shape);

}  // namespace accord::kernels::block_scaled
