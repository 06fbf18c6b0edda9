#include "rollout/page_pool.hpp"

#include "model/forward.hpp"
#include "support/catch.hpp"

using accord::model::kPageSize;
using accord::rollout::PagePool;

TEST_CASE("pages are row offsets and run out") {
  PagePool pool(2);
  CHECK(pool.allocate() == 0);
  CHECK(pool.allocate() == kPageSize);
  CHECK(pool.allocate() == -1);
  CHECK(pool.num_free() == 0);
}

TEST_CASE("a page is free again only when its last holder releases it") {
  PagePool pool(1);
  const int32_t page = pool.allocate();
  CHECK(!pool.shared(page));
  pool.add_ref(page);
  CHECK(pool.shared(page));
  pool.release(page);
  CHECK(!pool.shared(page));
  CHECK(pool.allocate() == -1);
  pool.release(page);
  CHECK(pool.allocate() == page);
}

TEST_CASE("the peak counts pages in use") {
  PagePool pool(4);
  const int32_t a = pool.allocate();
  const int32_t b = pool.allocate();
  pool.release(a);
  CHECK(pool.peak_used() == 2);
  pool.reset_peak();
  CHECK(pool.peak_used() == 1);
  pool.release(b);
  CHECK(pool.num_free() == 4);
}
