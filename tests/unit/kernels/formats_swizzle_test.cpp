#include <vector>

#include "kernels/formats/swizzle.hpp"
#include "support/catch.hpp"

using namespace accord::formats;

TEST_CASE("formats: scale tiles go there and back, and are padded with zeros") {
  for (int64_t rows : {1, 31, 32, 128, 129, 300}) {
    for (int64_t inner : {1, 3, 4, 5, 16}) {
      CAPTURE(rows, inner);
      std::vector<uint8_t> scale;
      for (int64_t i = 0; i < rows * inner; ++i) {
        scale.push_back(static_cast<uint8_t>(i % 251 + 1));  // never 0
      }
      std::vector<uint8_t> tiles(static_cast<size_t>(swizzled_scale_size(rows, inner)), 0xaa);
      swizzle_scales(scale.data(), rows, inner, tiles.data());
      CHECK(static_cast<int64_t>(tiles.size()) == ((rows + 127) / 128) * ((inner + 3) / 4) * 512);
      int64_t zeros = 0;
      for (uint8_t byte : tiles) {
        zeros += byte == 0 ? 1 : 0;
      }
      CHECK(zeros == static_cast<int64_t>(tiles.size()) - rows * inner);
      std::vector<uint8_t> back(scale.size());
      unswizzle_scales(tiles.data(), rows, inner, back.data());
      CHECK(back == scale);
    }
  }
}

TEST_CASE("formats: scale tile offsets") {
  CHECK(swizzled_scale_offset(0, 0, 8) == 0);
  CHECK(swizzled_scale_offset(1, 0, 8) == 16);
  CHECK(swizzled_scale_offset(32, 0, 8) == 4);
  CHECK(swizzled_scale_offset(0, 3, 8) == 3);
  CHECK(swizzled_scale_offset(0, 4, 8) == 512);
  CHECK(swizzled_scale_offset(128, 0, 8) == 1024);
  CHECK(swizzled_scale_offset(127, 7, 8) == 1023);
}
