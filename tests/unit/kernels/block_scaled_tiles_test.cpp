// The words of scale tiles, as the device fills them, against the address of a scale.
#include <vector>

#include "kernels/block_scaled/scale_tiles.hpp"
#include "kernels/formats/swizzle.hpp"
#include "support/catch.hpp"

using namespace accord::kernels::block_scaled;

TEST_CASE("block-scaled: words of scale tiles cover every scale once") {
  for (const int64_t rows : {1, 33, 128, 129, 384}) {
    for (const int64_t inner : {1, 4, 5, 18, 64}) {
      CAPTURE(rows, inner);
      const int64_t words = tile_words(rows, inner);
      REQUIRE(words * 4 == accord::formats::swizzled_scale_size(rows, inner));
      std::vector<int> seen(static_cast<size_t>(rows * inner), 0);
      int64_t wrong = 0;
      for (int64_t at = 0; at < words; ++at) {
        const TileWord word = tile_word(at, inner);
        for (int64_t i = 0; i < 4; ++i) {
          if (word.row >= rows || word.column + i >= inner) continue;
          ++seen[static_cast<size_t>(word.row * inner + word.column + i)];
          wrong += accord::formats::swizzled_scale_offset(word.row, word.column + i, inner) != at * 4 + i;
        }
      }
      for (const int times : seen) wrong += times != 1;
      CHECK(wrong == 0);
    }
  }
}
