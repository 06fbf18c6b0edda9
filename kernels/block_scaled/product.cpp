#include "kernels/block_scaled/product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/formats/swizzle.hpp"

namespace accord::kernels::block_scaled {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 30;

}  // namespace

bool takes(const ProductShape& s) {
  const bool quantized = s.format == WeightFormat::kMXFP8 || s.format == WeightFormat::kNVFP4;
  return quantized && s.n > 0 && s.n <= kMaxDimension && s.n % 16 == 0 && s.k > 0 && s.k <= kMaxDimension &&
         s.k % 32 == 0;
}

int64_t block_of(WeightFormat format) { return format == WeightFormat::kMXFP8 ? 32 : 16; }

int64_t row_bytes(const ProductShape& s) { return s.format == WeightFormat::kMXFP8 ? s.k : s.k / 2; }

int64_t scales_per_row(const ProductShape& s) { return s.k / block_of(s.format); }

int64_t tile_bytes(const ProductShape& s, int64_t rows) {
  return formats::swizzled_scale_size(rows, scales_per_row(s));
}

int64_t rows_per_call(int64_t n) {
  const int64_t rows = kSumsBytes / (n * static_cast<int64_t>(sizeof(float)));
  return std::max(rows / kRowMultiple * kRowMultiple, kRowMultiple);
}

float products_inverse(int32_t x_range, int32_t w_range) {
  return 1.0F / (36.0F * static_cast<float>(x_range) * static_cast<float>(w_range));
}

std::string to_string(const ProductShape& s) {
  return fmt::format("{} {}x{}", s.format == WeightFormat::kMXFP8 ? "mxfp8" : "nvfp4", s.n, s.k);
}

}  // namespace accord::kernels::block_scaled
