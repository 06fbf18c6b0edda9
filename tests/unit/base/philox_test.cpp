#include "base/philox.hpp"

#include <set>

#include "support/catch.hpp"

using namespace accord;

TEST_CASE("Philox4x32-10 gives the published known answers") {
  // From the Random123 distribution's kat_vectors.
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxBlock{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}) ==
        PhiloxBlock{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}) ==
        PhiloxBlock{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("every part of a sample's identity changes its random numbers") {
  std::set<PhiloxBlock> blocks;
  blocks.insert(sample_random(1, 1, 1, 1, 1));
  blocks.insert(sample_random(2, 1, 1, 1, 1));
  blocks.insert(sample_random(1, 2, 1, 1, 1));
  blocks.insert(sample_random(1, 1, 2, 1, 1));
  blocks.insert(sample_random(1, 1, 1, 2, 1));
  blocks.insert(sample_random(1, 1, 1, 1, 2));
  CHECK(blocks.size() == 6);
}

TEST_CASE("uniform_float stays below one") {
  CHECK(uniform_float(0) == 0.0F);
  CHECK(uniform_float(0xffffffffu) < 1.0F);
}

TEST_CASE("next_below is in range and reaches every value") {
  PhiloxStream stream(7, 1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 500; ++i) {
    const uint64_t value = stream.next_below(10);
    REQUIRE(value < 10);
    seen.insert(value);
  }
  CHECK(seen.size() == 10);
}
