#include "device/thread_pool.hpp"

#include <atomic>
#include <vector>

#include "support/catch.hpp"

using namespace accord;

TEST_CASE("parallel_for runs every index exactly once, call after call") {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    CHECK(pool.num_threads() == threads);
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<std::atomic<int>> hits(37);
      pool.parallel_for(37, [&](int64_t i) { hits[static_cast<size_t>(i)]++; });
      for (const auto& hit : hits) {
        REQUIRE(hit == 1);
      }
    }
  }
}
