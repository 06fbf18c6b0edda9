#include "text/epoch_sampler.hpp"

#include <algorithm>
#include <set>

#include "support/catch.hpp"

namespace accord::text {

TEST_CASE("Every epoch holds every record once also when batches straddle") {
  EpochSampler sampler(42, 10);
  std::vector<uint64_t> drawn;
  for (int i = 0; i < 10; ++i) {
    const auto batch = sampler.next(7);
    REQUIRE(batch.size() == 7);
    drawn.insert(drawn.end(), batch.begin(), batch.end());
  }
  std::set<std::vector<uint64_t>> orders;
  for (size_t epoch = 0; epoch < 7; ++epoch) {
    std::vector<uint64_t> order(drawn.begin() + static_cast<int64_t>(epoch * 10),
                                drawn.begin() + static_cast<int64_t>(epoch * 10 + 10));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (uint64_t i = 0; i < 10; ++i) {
      CHECK(order[i] == i);
    }
  }
  CHECK(orders.size() == 7);  // seven different shuffles
}

TEST_CASE("The order is a function of seed and epoch") {
  CHECK(EpochSampler(1, 100).next(100) == EpochSampler(1, 100).next(100));
  CHECK(EpochSampler(1, 100).next(100) != EpochSampler(2, 100).next(100));
  // Fixed values: a change of these changes which records a resumed run sees.
  CHECK(EpochSampler(42, 8).next(8) == std::vector<uint64_t>{3, 5, 1, 6, 2, 7, 0, 4});
}

TEST_CASE("A sampler that seeks goes on as if it had drawn") {
  EpochSampler whole(7, 13);
  const auto all = whole.next(100);
  for (uint64_t start = 0; start <= 60; ++start) {
    EpochSampler resumed(7, 13);
    resumed.seek(start);
    CHECK(resumed.consumed() == start);
    const auto rest = resumed.next(40);
    CHECK(std::equal(rest.begin(), rest.end(), all.begin() + static_cast<int64_t>(start)));
    CHECK(resumed.consumed() == start + 40);
  }
}

TEST_CASE("A batch may be larger than the data") {
  EpochSampler sampler(3, 1);
  CHECK(sampler.next(4) == std::vector<uint64_t>{0, 0, 0, 0});
  CHECK(sampler.consumed() == 4);
}

}  // namespace accord::text
