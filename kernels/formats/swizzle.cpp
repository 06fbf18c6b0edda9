#include "kernels/formats/swizzle.hpp"

#include <cstring>

namespace accord::formats {

int64_t swizzled_scale_size(int64_t rows, int64_t inner) {
  return ((rows + 127) / 128) * ((inner + 3) / 4) * 512;
}

int64_t swizzled_scale_offset(int64_t i, int64_t j, int64_t inner) {
  return ((i / 128) * ((inner + 3) / 4) + j / 4) * 512 + (i % 32) * 16 + ((i % 128) / 32) * 4 + j % 4;
}

void swizzle_scales(const uint8_t* scale, int64_t rows, int64_t inner, uint8_t* tiles) {
  std::memset(tiles, 0, static_cast<size_t>(swizzled_scale_size(rows, inner)));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      tiles[swizzled_scale_offset(i, j, inner)] = scale[i * inner + j];
    }
  }
}

void unswizzle_scales(const uint8_t* tiles, int64_t rows, int64_t inner, uint8_t* scale) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      scale[i * inner + j] = tiles[swizzled_scale_offset(i, j, inner)];
    }
  }
}

}  // namespace accord::formats
