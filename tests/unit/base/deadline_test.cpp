#include "base/deadline.hpp"

#include <thread>

#include "support/catch.hpp"

using namespace accord;
using std::chrono::milliseconds;

TEST_CASE("a deadline expires and never runs negative") {
  const Deadline past = Deadline::after(milliseconds(-5));
  CHECK(past.expired());
  CHECK(past.remaining() == milliseconds(0));
  const Deadline later = Deadline::after(milliseconds(60000));
  CHECK_FALSE(later.expired());
  CHECK(later.remaining() > milliseconds(50000));
  CHECK(later.within(milliseconds(100)).remaining() <= milliseconds(100));
  CHECK(later.within(milliseconds(600000)).time() == later.time());
}

TEST_CASE("the wait list shows the waits in progress, the longest first") {
  WaitList waits;
  CHECK(waits.snapshot().empty());
  {
    const Wait outer(&waits, "rollout/2 to answer", Deadline::after(milliseconds(60000)));
    std::this_thread::sleep_for(milliseconds(2));
    const Wait inner(&waits, "a free page", Deadline::after(milliseconds(1000)));
    const auto entries = waits.snapshot();
    REQUIRE(entries.size() == 2);
    CHECK(entries[0].reason == "rollout/2 to answer");
    CHECK(entries[0].waited_s >= 0.002);
    CHECK(entries[0].remaining_s > 50);
    CHECK(entries[1].reason == "a free page");
    CHECK(entries[1].remaining_s <= 1.0);
  }
  CHECK(waits.snapshot().empty());
}

TEST_CASE("a wait that ran out says what it waited for") {
  const Wait wait(nullptr, "4 workers to register", Deadline::after(milliseconds(0)));
  const Status status = wait.timed_out();
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(exit_code(status) == ExitCode::kUnavailable);
  CHECK(message_of(status) == "waited 0.0 s for 4 workers to register");
}
