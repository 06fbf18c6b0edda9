#include "base/natural_order.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace accord;

TEST_CASE("natural order: digits are compared as numbers") {
  const std::vector<std::string> expected = {
      "",           "rollout",     "rollout/0", "rollout/1", "rollout/2",   "rollout/9", "rollout/10",
      "rollout/11", "rollout/100", "rollout/x", "trainer/0", "trainer/0/b", "trainer/12"};
  std::vector<std::string> names(expected.rbegin(), expected.rend());
  std::sort(names.begin(), names.end(), natural_less);
  CHECK(names == expected);
}

TEST_CASE("natural order: is strict and total") {
  CHECK(!natural_less("a/7", "a/7"));
  CHECK(natural_less("a/007", "a/7"));
  CHECK(!natural_less("a/7", "a/007"));
  CHECK(natural_less("a/007", "a/8"));
  CHECK(natural_less("a/99999999999999999999999998", "a/99999999999999999999999999"));
  CHECK(natural_less("0", "a"));
  CHECK(natural_less("1a", "1b"));
}
