#include "base/json_text.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "support/catch.hpp"

using namespace accord;

TEST_CASE("JSON numbers are the shortest that read back to the same bits") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  CHECK(json_number(0.1) == "0.1");
  CHECK(json_number(1.0) == "1");
  CHECK(json_number(-0.0) == "-0");
  CHECK(json_number(1e-6) == "1e-06");
  CHECK(json_number(1.0 / 3.0) == "0.3333333333333333");
  CHECK(json_number(std::nan("")) == "\"NaN\"");
  CHECK(json_number(kInf) == "\"Infinity\"");
  CHECK(json_number(-kInf) == "\"-Infinity\"");
  uint64_t bits = 0x0123456789abcdefU;
  for (int i = 0; i < 2000; ++i) {
    bits = bits * 6364136223846793005U + 1442695040888963407U;
    const auto value = std::bit_cast<double>(bits);
    if (std::isfinite(value)) {
      REQUIRE(std::bit_cast<uint64_t>(std::strtod(json_number(value).c_str(), nullptr)) == bits);
    }
  }
}

TEST_CASE("JSON strings are escaped") {
  CHECK(json_string("model.norm.weight") == "\"model.norm.weight\"");
  CHECK(json_string("a\"b\\c\n\t\x01") == "\"a\\\"b\\\\c\\u000a\\u0009\\u0001\"");
  CHECK(json_string("Gr\xc3\xbc\xc3\x9f") == "\"Gr\xc3\xbc\xc3\x9f\"");
}
