#pragma once
// The inverse of formats/swizzle.hpp's address, four scales at a time, as host and device compute it.
#include <cstdint>

namespace accord::kernels::block_scaled {

// Scales of one word of the tiles: row `row`, columns [column, column + 4).
struct TileWord {
  int64_t row;
  int64_t column;
};

// Word `at` of the tiles of a matrix with `inner` columns of scales. A tile has 128 words: rows 0, 32, 64 and
// 96 side by side, then rows 1, 33, ...
constexpr TileWord tile_word(int64_t at, int64_t inner) {
  const int64_t tiles_per_row = (inner + 3) / 4;
  const int64_t tile = at / 128;
  const int64_t word = at % 128;
  return {tile / tiles_per_row * 128 + word % 4 * 32 + word / 4, tile % tiles_per_row * 4};
}

// How many there are.
constexpr int64_t tile_words(int64_t rows, int64_t inner) {
  return (rows + 127) / 128 * ((inner + 3) / 4) * 128;
}

}  // namespace accord::kernels::block_scaled
