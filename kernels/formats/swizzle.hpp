#pragma once
// The 128x4 scale tile of block-scaled tensor cores (docs/contract.md, section 8): a reordering of a scale
// matrix [rows, inner] of bytes, padded with 0x00 to whole tiles of 512 bytes, and its inverse.
//   offset(i, j) = ((i/128)*ceil(inner/4) + j/4)*512 + (i%32)*16 + ((i%128)/32)*4 + j%4
#include <cstdint>

namespace accord::formats {

int64_t swizzled_scale_size(int64_t rows, int64_t inner);  // ceil(rows/128) * ceil(inner/4) * 512
int64_t swizzled_scale_offset(int64_t i, int64_t j, int64_t inner);

void swizzle_scales(const uint8_t* scale, int64_t rows, int64_t inner, uint8_t* tiles);
void unswizzle_scales(const uint8_t* tiles, int64_t rows, int64_t inner, uint8_t* scale);

}  // namespace accord::formats
